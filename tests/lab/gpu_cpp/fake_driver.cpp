// A driver without a device, with the documented behaviour of both vendors' interfaces as far as
// Retuned uses them: contexts per thread, modules, launches that fault later, errors that stick.
//
// "Device" memory is this process' memory. The code of a cubin cannot run here; what runs is a
// shared object beside this library, named by a hash of the cubin, made from the same source.
#include <dlfcn.h>
#include <elf.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <atomic>
#include <mutex>
#include <string>

namespace {
enum {
  OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701, LAUNCH_FAILED = 719
};
enum { SHARED_MOST = 232448, SHARED_FREE = 49152, MAGIC = 0x52554e };

struct Module {
  int magic;
  void* library;
  int (*launch)(const unsigned*, const unsigned*, unsigned, void**);
  std::string name;
  unsigned shared_bytes;
};

std::atomic<int> sticky{0}, pending{0}, fail_next{0}, loaded{0}, launched{0}, initialized{0};
std::atomic<unsigned long long> last_stream{0};
std::mutex running;
int context_object;
thread_local void* current_context = nullptr;
thread_local sigjmp_buf escape;
thread_local bool guarded = false;

void on_fault(int number) {
  if (guarded) siglongjmp(escape, 1);
  signal(number, SIG_DFL);
  raise(number);
}

// Faults of earlier launches show at whatever call comes next, and never go away.
int surfaced() {
  if (pending) sticky = pending.load();
  return sticky;
}

uint64_t hash_of(const unsigned char* image) {
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  const uint64_t size = head->e_shoff + (uint64_t)head->e_shnum * head->e_shentsize;
  uint64_t hash = 14695981039346656037ull;
  for (uint64_t at = 0; at < size; at++) hash = (hash ^ image[at]) * 1099511628211ull;
  return hash;
}

std::string beside(uint64_t hash) {
  Dl_info info;
  dladdr((void*)&hash_of, &info);
  std::string path(info.dli_fname);
  char name[32];
  snprintf(name, sizeof name, "%016llx.so", (unsigned long long)hash);
  return path.substr(0, path.rfind('/') + 1) + name;
}

int load(void** out, const void* image) {
  if (int code = surfaced()) return code;
  if (int code = fail_next.exchange(0)) return code;
  if (memcmp(image, ELFMAG, SELFMAG) != 0) return INVALID_IMAGE;
  void* library = dlopen(beside(hash_of((const unsigned char*)image)).c_str(), RTLD_NOW);
  if (!library) return NO_BINARY;
  Module* made = new Module{MAGIC, library, nullptr, "", 0};
  made->launch = (decltype(made->launch))dlsym(library, "emulated_launch");
  made->name = ((const char* (*)())dlsym(library, "emulated_name"))();
  loaded++;
  *out = made;
  return OK;
}

int find(void** out, void* module, const char* name) {
  if (int code = surfaced()) return code;
  if (((Module*)module)->name != name) return NOT_FOUND;
  *out = module;
  return OK;
}

int allow(void* kernel, int attribute, int value) {
  if (attribute != 8 || value > SHARED_MOST) return INVALID_VALUE;
  ((Module*)kernel)->shared_bytes = value;
  return OK;
}

int launch(void* kernel, const unsigned* grid, const unsigned* block, unsigned shared_bytes,
           void* stream, void** arguments) {
  if (int code = surfaced()) return code;
  Module* module = (Module*)kernel;
  if (!module || module->magic != MAGIC) return INVALID_HANDLE;
  const unsigned long long threads = 1ull * block[0] * block[1] * block[2];
  if (!grid[0] || !grid[1] || !grid[2] || !threads || grid[1] > 65535 || grid[2] > 65535)
    return INVALID_VALUE;
  if (threads > 1024 || block[2] > 64) return INVALID_VALUE;
  if (shared_bytes > SHARED_FREE && shared_bytes > module->shared_bytes) return INVALID_VALUE;
  if (int code = fail_next.exchange(0)) return code;
  std::lock_guard<std::mutex> alone(running);
  launched++;
  last_stream = (unsigned long long)stream;
  struct sigaction ours = {}, before_segv, before_bus;
  ours.sa_handler = on_fault;
  ours.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &ours, &before_segv);
  sigaction(SIGBUS, &ours, &before_bus);
  guarded = true;
  const int code = sigsetjmp(escape, 1) ? ILLEGAL_ADDRESS
                                        : module->launch(grid, block, shared_bytes, arguments);
  guarded = false;
  sigaction(SIGSEGV, &before_segv, nullptr);
  sigaction(SIGBUS, &before_bus, nullptr);
  if (code) pending = code;  // a launch is asynchronous: this one answers that it was queued
  return OK;
}

int unload(void* module) {
  if (int code = surfaced()) return code;
  Module* given = (Module*)module;
  if (!given || given->magic != MAGIC) return INVALID_HANDLE;
  given->magic = 0;
  loaded--;
  return OK;
}

const char* name_of(int code) {
  switch (code) {
    case INVALID_VALUE: return "ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "ERROR_OUT_OF_MEMORY";
    case INVALID_IMAGE: return "ERROR_INVALID_IMAGE";
    case INVALID_CONTEXT: return "ERROR_INVALID_CONTEXT";
    case NO_BINARY: return "ERROR_NO_BINARY_FOR_GPU";
    case NOT_FOUND: return "ERROR_NOT_FOUND";
    case ILLEGAL_ADDRESS: return "ERROR_ILLEGAL_ADDRESS";
    case LAUNCH_FAILED: return "ERROR_LAUNCH_FAILED";
    default: return nullptr;
  }
}
}  // namespace

#define API extern "C" int
extern "C" {
void fake_fail_next(int code) { fail_next = code; }
int fake_loaded() { return loaded; }
int fake_launched() { return launched; }
unsigned long long fake_last_stream() { return last_stream; }
}

API cuInit(unsigned) { initialized = 1; return OK; }
API cuDeviceGet(int* out, int ordinal) {
  if (!initialized) return NOT_INITIALIZED;
  *out = ordinal;
  return ordinal == 0 ? OK : 101;
}
API cuDevicePrimaryCtxRetain(void** out, int) { *out = &context_object; return surfaced(); }
API cuCtxSetCurrent(void* context) { current_context = context; return surfaced(); }
API cuCtxSynchronize() { return current_context ? surfaced() : INVALID_CONTEXT; }
API cuModuleLoadData(void** out, const void* image) {
  return current_context ? load(out, image) : INVALID_CONTEXT;
}
API cuModuleGetFunction(void** out, void* module, const char* name) {
  return find(out, module, name);
}
API cuFuncSetAttribute(void* kernel, int attribute, int value) {
  return allow(kernel, attribute, value);
}
API cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared_bytes, void* stream, void** arguments, void**) {
  if (!current_context) return INVALID_CONTEXT;
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(kernel, grid, block, shared_bytes, stream, arguments);
}
API cuModuleUnload(void* module) { return current_context ? unload(module) : INVALID_CONTEXT; }
API cuGetErrorName(int code, const char** out) {
  *out = name_of(code);
  return *out ? OK : INVALID_VALUE;
}

API hipInit(unsigned) { initialized = 1; return OK; }
API hipSetDevice(int ordinal) { return ordinal == 0 ? surfaced() : 101; }
API hipDeviceSynchronize() { return surfaced(); }
API hipModuleLoadData(void** out, const void* image) { return load(out, image); }
API hipModuleGetFunction(void** out, void* module, const char* name) {
  return find(out, module, name);
}
API hipFuncSetAttribute(const void* kernel, int attribute, int value) {
  return allow((void*)kernel, attribute, value);
}
API hipModuleLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared_bytes, void* stream,
                          void** arguments, void**) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(kernel, grid, block, shared_bytes, stream, arguments);
}
API hipModuleUnload(void* module) { return unload(module); }
extern "C" const char* hipGetErrorName(int code) {
  const char* name = name_of(code);
  return name ? name : "hipErrorUnknown";
}
