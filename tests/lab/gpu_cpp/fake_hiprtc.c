/* hipRTC by its documentation, without a compiler: hands out the object that lies beside this
 * library, in a bundle, if it was asked as it has to be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program { char* source; char log[4096]; char header[64]; };

int hiprtcVersion(int* major, int* minor) { *major = 6; *minor = 3; return 0; }
int hiprtcCreateProgram(struct program** out, const char* source, const char* name, int count,
                        const char** headers, const char** names) {
  struct program* made = calloc(1, sizeof *made);
  made->source = strdup(source);
  if (count > 0 && strlen(headers[0]) > 100) snprintf(made->header, 64, "%s", names[0]);
  snprintf(made->log, sizeof made->log, "%s", name);
  *out = made;
  return 0;
}
int hiprtcCompileProgram(struct program* program, int count, const char** options) {
  if (strstr(program->source, "no such thing")) {
    snprintf(program->log, sizeof program->log,
             "/some/where/kernel.cu:3:1: error: use of undeclared identifier\n");
    return 6;
  }
  char asked[2048] = "";
  for (int at = 0; at < count; at++) {
    strncat(asked, options[at], 200);
    strcat(asked, " ");
  }
  if (!strstr(asked, "--offload-arch=gfx942 ") || !strstr(asked, "-DBLOCK_X=64 ")) return 5;
  if (!strstr(asked, "--gpu-max-threads-per-block=64 ")) return 5;
  return strcmp(program->header, "retuned_device.h") ? 5 : 0;
}
int hiprtcGetProgramLogSize(struct program* program, size_t* out) {
  *out = strlen(program->log) + 1;
  return 0;
}
int hiprtcGetProgramLog(struct program* program, char* out) {
  strcpy(out, program->log);
  return 0;
}
/* A bundle with an entry for the host, which is empty, and one for the device. */
static unsigned char* bundle(struct program* program, size_t* size) {
  Dl_info here;
  dladdr((void*)&hiprtcVersion, &here);
  char path[600];
  snprintf(path, sizeof path, "%s.hsaco", here.dli_fname);
  FILE* file = fopen(path, "rb");
  if (!file) return 0;
  static unsigned char data[1 << 20];
  const char* names[] = {"host-x86_64-unknown-linux--", "hipv4-amdgcn-amd-amdhsa--gfx942"};
  const size_t begin = 4096, length = fread(data + begin, 1, sizeof data - begin, file);
  fclose(file);
  unsigned char* at = data;
  memcpy(at, "__CLANG_OFFLOAD_BUNDLE__", 24);
  unsigned long long count = 2;
  memcpy(at += 24, &count, 8);
  at += 8;
  for (int each = 0; each < 2; each++) {
    unsigned long long entry[3] = {begin, each ? length : 0, strlen(names[each])};
    memcpy(at, entry, 24);
    memcpy(at + 24, names[each], entry[2]);
    at += 24 + entry[2];
  }
  *size = begin + length;
  return data;
}
int hiprtcGetCodeSize(struct program* program, size_t* out) {
  return bundle(program, out) ? 0 : 11;
}
int hiprtcGetCode(struct program* program, char* out) {
  size_t size;
  unsigned char* data = bundle(program, &size);
  memcpy(out, data, size);
  return 0;
}
