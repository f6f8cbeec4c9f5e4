// Graphs of both vendors without a device, by their documentation: what is captured becomes a node
// that waits for the last one, arguments are copied when a node is added or set, an instance is
// changed apart from the graph it was made from, errors that break the context stick.
//
// "Device" memory is this process' memory. A module is text, one kernel a line:
//   NAME SIZES OPERATION   where SIZES are the bytes of each argument, 8,8,4
// A kernel reads x (argument 0) and writes y (argument 1), as many elements as argument 2
// says and its threads reach; OPERATION is one of double, triple, broken, or turned: -1, and the
// first two arguments change places.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <atomic>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

// As the vendors declare them: field by field, in their order.
struct dim3 { uint32_t x, y, z; };
struct CudaParams {
  void* func;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void** kernelParams;
  void** extra;
  void* kern;
  void* ctx;
};
struct HipParams {
  dim3 blockDim;
  void** extra;
  void* func;
  dim3 gridDim;
  void** kernelParams;
  unsigned sharedMemBytes;
};

namespace {
enum {
  OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_IMAGE = 200, LOSSY = 402,
  INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900
};
enum { KERNEL = 0, MEMSET = 2, SHARED_MOST = 232448, SHARED_FREE = 49152 };
const uint64_t ALIVE = 0x52455455, DEAD = 0xdead;

struct Kernel {
  uint64_t magic;
  std::string name, operation;
  std::vector<size_t> sizes, offsets;
  unsigned shared_allowed;
  int context;
  bool library;
};
struct Module { std::vector<Kernel*> kernels; };
struct Launch {
  Kernel* kernel;
  unsigned grid[3], block[3], shared_bytes;
  std::vector<std::string> values;
  std::vector<void*> pointers;
  bool packed;
  std::string buffer;
  size_t buffer_size;
  void* extra[6];
};
struct Graph;
struct Node {
  uint64_t magic;
  int kind;
  Launch launch;
  std::vector<Node*> before;
  Graph* graph;
  bool programmatic;
  unsigned cluster, cooperative;
};
struct Graph { uint64_t magic; std::vector<Node*> nodes; };
struct Exec { uint64_t magic; std::vector<Node*> from; std::vector<int> kinds;
              std::vector<Launch> launches; std::atomic<int> busy; };
struct Stream { bool capturing; unsigned long long id; Graph* graph; std::vector<Node*> last; };

std::atomic<int> sticky{0}, live_graphs{0}, live_nodes{0}, live_kernels{0}, sets{0}, raced{0};
std::atomic<int> fail_exec_at{0}, fail_exec_code{0}, fail_node_at{0}, fail_node_code{0};
std::atomic<int> wrong_readback{0}, packed_arguments{0}, last_error{0};
std::atomic<unsigned long long> captures{0};
int context_object, other_context;
thread_local void* current_context = nullptr;
std::map<void*, Stream> streams;
std::mutex streams_lock;

int done(int code) {
  if (code) last_error = code;
  return code;
}
Stream& stream_of(void* stream) {
  std::lock_guard<std::mutex> alone(streams_lock);
  return streams[stream];
}
bool is(const Kernel* kernel) { return kernel && kernel->magic == ALIVE; }
bool is(const Node* node) { return node && node->magic == ALIVE; }

void point(Launch& launch) {
  launch.pointers.clear();
  for (std::string& value : launch.values) launch.pointers.push_back(&value[0]);
  if (!launch.packed) return;
  const Kernel& kernel = *launch.kernel;
  launch.buffer.assign(kernel.sizes.empty() ? 0 : kernel.offsets.back() + kernel.sizes.back(), 0);
  for (size_t at = 0; at < kernel.sizes.size(); at++)
    memcpy(&launch.buffer[kernel.offsets[at]], &launch.values[at][0], kernel.sizes[at]);
  launch.buffer_size = launch.buffer.size();
  void* words[] = {(void*)1, &launch.buffer[0], (void*)2, &launch.buffer_size, (void*)3, nullptr};
  memcpy(launch.extra, words, sizeof words);
}
int fill(Launch& out, Kernel* kernel, const unsigned* grid, const unsigned* block, unsigned shared,
         void** arguments) {
  if (!is(kernel)) return INVALID_HANDLE;
  const unsigned long long threads = 1ull * block[0] * block[1] * block[2];
  if (!grid[0] || !grid[1] || !grid[2] || !threads || threads > 1024) return INVALID_VALUE;
  if (shared > SHARED_FREE && shared > kernel->shared_allowed) return INVALID_VALUE;
  if (!arguments && !kernel->sizes.empty()) return INVALID_VALUE;
  out.kernel = kernel;
  memcpy(out.grid, grid, 12);
  memcpy(out.block, block, 12);
  out.shared_bytes = shared;
  out.values.clear();
  for (size_t at = 0; at < kernel->sizes.size(); at++)
    out.values.emplace_back((const char*)arguments[at], kernel->sizes[at]);
  out.packed = packed_arguments;
  point(out);
  return OK;
}
int run(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  if (!is(&kernel)) return ILLEGAL_ADDRESS;
  if (kernel.operation == "broken") { sticky = ILLEGAL_ADDRESS; return OK; }
  const bool turned = kernel.operation == "turned";
  const float* x = *(const float**)&launch.values[turned ? 1 : 0][0];
  float* y = *(float**)&launch.values[turned ? 0 : 1][0];
  long long count = 0;
  memcpy(&count, &launch.values[2][0], kernel.sizes[2]);
  const long long reach = 1ll * launch.grid[0] * launch.block[0];
  const float by = kernel.operation == "double" ? 2 : kernel.operation == "triple" ? 3 : -1;
  for (long long at = 0; at < count && at < reach; at++) y[at] = by * x[at];
  return OK;
}
int launch(Kernel* kernel, const unsigned* grid, const unsigned* block, unsigned shared,
           void* stream, void** arguments) {
  if (sticky) return sticky;
  Launch made;
  if (int code = fill(made, kernel, grid, block, shared, arguments)) return code;
  Stream& in = stream_of(stream);
  if (!in.capturing) return run(made);
  Node* node = new Node{ALIVE, KERNEL, made, in.last, in.graph, false, 0, 0};
  live_nodes++;
  point(node->launch);
  in.graph->nodes.push_back(node);
  in.last = {node};
  return OK;
}
int begin(void* stream) {
  Stream& in = stream_of(stream);
  if (in.capturing) return CAPTURE_UNSUPPORTED;
  live_graphs++;
  in = Stream{true, ++captures, new Graph{ALIVE, {}}, {}};
  return OK;
}
int end(void* stream, void** out) {
  Stream& in = stream_of(stream);
  if (!in.capturing) return INVALID_VALUE;
  *out = in.graph;
  in = Stream{};
  return OK;
}
int info(void* stream, int* status, unsigned long long* id, void** graph, const void*** last,
         size_t* count) {
  if (sticky) return sticky;
  Stream& in = stream_of(stream);
  *status = in.capturing;
  if (!in.capturing) return OK;
  for (Node* node : in.last) if (node->programmatic) return LOSSY;
  *id = in.id;
  *graph = in.graph;
  *last = (const void**)in.last.data();
  *count = in.last.size();
  return OK;
}
int list(const std::vector<Node*>& nodes, void** out, size_t* count) {
  if (!out) { *count = nodes.size(); return OK; }
  const size_t room = *count;
  for (size_t at = 0; at < room; at++) out[at] = at < nodes.size() ? nodes[at] : nullptr;
  *count = nodes.size() < room ? nodes.size() : room;
  return OK;
}
int nodes_of(Graph* graph, void** out, size_t* count) {
  if (sticky) return sticky;
  if (!graph || graph->magic != ALIVE) return INVALID_VALUE;
  return list(graph->nodes, out, count);
}
int before(Node* node, void** out, size_t* count) {
  if (!is(node)) return INVALID_VALUE;
  if (node->programmatic) return LOSSY;
  return list(node->before, out, count);
}
int after(Node* node, void** out, size_t* count) {
  if (!is(node)) return INVALID_VALUE;
  std::vector<Node*> found;
  for (Node* other : node->graph->nodes)
    for (Node* one : other->before)
      if (one == node) {
        if (other->programmatic) return LOSSY;
        found.push_back(other);
      }
  return list(found, out, count);
}
int kind_of(Node* node, int* out) {
  if (!is(node)) return INVALID_VALUE;
  *out = node->kind;
  return OK;
}
int set(Launch& into, Kernel* kernel, const unsigned* grid, const unsigned* block, unsigned shared,
        void** arguments) {
  if (!is(kernel)) return INVALID_VALUE;
  if (into.kernel->context != kernel->context) return INVALID_VALUE;  // the owner cannot change
  Launch made;
  if (int code = fill(made, kernel, grid, block, shared, arguments)) return code;
  into = made;
  point(into);
  sets++;
  return OK;
}
int set_node(Node* node, Kernel* kernel, const unsigned* grid, const unsigned* block,
             unsigned shared, void** arguments) {
  if (sticky) return sticky;
  if (!is(node) || node->kind != KERNEL) return INVALID_VALUE;
  if (fail_node_at && --fail_node_at == 0) return fail_node_code;
  return set(node->launch, kernel, grid, block, shared, arguments);
}
int set_exec(Exec* exec, Node* node, Kernel* kernel, const unsigned* grid, const unsigned* block,
             unsigned shared, void** arguments) {
  if (sticky) return sticky;
  if (!exec || exec->magic != ALIVE || !is(node) || node->kind != KERNEL) return INVALID_VALUE;
  if (fail_exec_at && --fail_exec_at == 0) {
    if (fail_exec_code == ILLEGAL_ADDRESS) sticky = ILLEGAL_ADDRESS;
    return fail_exec_code;
  }
  if (exec->busy.exchange(1)) raced++;
  int code = INVALID_VALUE;
  for (size_t at = 0; at < exec->from.size(); at++)
    if (exec->from[at] == node)
      code = set(exec->launches[at], kernel, grid, block, shared, arguments);
  exec->busy = 0;
  return code;
}
int instantiate(void** out, Graph* graph) {
  if (!graph || graph->magic != ALIVE) return INVALID_VALUE;
  Exec* made = new Exec();
  made->magic = ALIVE;
  made->from = graph->nodes;
  for (Node* node : graph->nodes) {
    made->kinds.push_back(node->kind);
    made->launches.push_back(node->launch);
    point(made->launches.back());
  }
  *out = made;
  return OK;
}
int replay(Exec* exec) {
  if (sticky) return sticky;
  if (!exec || exec->magic != ALIVE) return INVALID_VALUE;
  if (exec->busy.exchange(1)) raced++;
  int code = OK;
  for (size_t at = 0; at < exec->from.size() && !code; at++)
    if (exec->kinds[at] == KERNEL) code = run(exec->launches[at]);
  exec->busy = 0;
  return code;
}
int destroy(Graph* graph) {
  if (!graph || graph->magic != ALIVE) return INVALID_VALUE;
  for (Node* node : graph->nodes) { node->magic = DEAD; live_nodes--; delete node; }
  graph->magic = DEAD;
  live_graphs--;
  delete graph;
  return OK;
}
int load(void** out, const char* text, bool library) {
  if (sticky) return sticky;
  std::istringstream lines(text);
  std::string line;
  Module* made = new Module();
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string name, sizes, operation, size;
    words >> name >> sizes >> operation;
    if (operation.empty()) return INVALID_IMAGE;
    Kernel* kernel = new Kernel{ALIVE, name, operation, {}, {}, 0, 0, library};
    std::istringstream each(sizes);
    size_t end = 0;
    while (std::getline(each, size, ',')) {
      const size_t bytes = atoi(size.c_str());
      end = (end + bytes - 1) / bytes * bytes;
      kernel->offsets.push_back(end);
      kernel->sizes.push_back(bytes);
      end += bytes;
    }
    live_kernels++;
    made->kernels.push_back(kernel);
  }
  *out = made;
  return OK;
}
int find(void** out, Module* module, const char* name) {
  for (Kernel* kernel : module->kernels)
    if (kernel->name == name) { *out = kernel; return OK; }
  return NOT_FOUND;
}
int unload(Module* module) {
  if (sticky) return sticky;
  for (Kernel* kernel : module->kernels) { kernel->magic = DEAD; live_kernels--; }
  return OK;  // the memory stays, so that a late use is seen
}
int allow(Kernel* kernel, int attribute, int value) {
  if (attribute != 8 || value > SHARED_MOST) return INVALID_VALUE;
  kernel->shared_allowed = value;
  return OK;
}
int param(Kernel* kernel, size_t place, size_t* offset, size_t* size) {
  if (!is(kernel)) return INVALID_HANDLE;
  if (place >= kernel->sizes.size()) return INVALID_VALUE;
  *offset = kernel->offsets[place];
  *size = kernel->sizes[place];
  return OK;
}
int attribute(Node* node, int which, unsigned* out) {
  if (!is(node) || node->kind != KERNEL) return INVALID_VALUE;
  memset(out, 0, 64);
  if (which == 4) { out[0] = node->cluster; out[1] = out[2] = node->cluster ? 1 : 0; }
  else if (which == 2) out[0] = node->cooperative;
  else if (which != 6) return INVALID_VALUE;
  return OK;
}
const char* name_of(int code) {
  switch (code) {
    case INVALID_VALUE: return "ERROR_INVALID_VALUE";
    case ILLEGAL_ADDRESS: return "ERROR_ILLEGAL_ADDRESS";
    default: return "ERROR_OTHER";
  }
}
}  // namespace

#define API extern "C" int
extern "C" {
int fake_count(int what) {
  const int counts[] = {live_graphs, live_nodes, live_kernels, sets, raced, last_error};
  return counts[what];
}
void fake_fail_exec(int at, int code) { fail_exec_at = at; fail_exec_code = code; }
void fake_fail_node(int at, int code) { fail_node_at = at; fail_node_code = code; }
void fake_wrong_readback(int on) { wrong_readback = on; }
void fake_pack(int on) { packed_arguments = on; }
void fake_heal() { sticky = 0; }
void fake_other_context(void* kernel) { ((Kernel*)kernel)->context = 1; }
void fake_mark(void* node, int what) {
  Node* one = (Node*)node;
  if (what == 0) one->programmatic = true;
  if (what == 1) one->cluster = 2;
  if (what == 2) one->cooperative = 1;
}
void fake_memset(void* stream) {
  Stream& in = stream_of(stream);
  Node* node = new Node{ALIVE, MEMSET, Launch{}, in.last, in.graph, false, 0, 0};
  live_nodes++;
  in.graph->nodes.push_back(node);
  in.last = {node};
}
size_t fake_offset(int vendor, int field) {
  const size_t cuda[] = {
      offsetof(CudaParams, func), offsetof(CudaParams, gridDimX), offsetof(CudaParams, gridDimY),
      offsetof(CudaParams, gridDimZ), offsetof(CudaParams, blockDimX),
      offsetof(CudaParams, blockDimY), offsetof(CudaParams, blockDimZ),
      offsetof(CudaParams, sharedMemBytes), offsetof(CudaParams, kernelParams),
      offsetof(CudaParams, extra), offsetof(CudaParams, kern), offsetof(CudaParams, ctx),
      sizeof(CudaParams)};
  const size_t hip[] = {
      offsetof(HipParams, blockDim), offsetof(HipParams, extra), offsetof(HipParams, func),
      offsetof(HipParams, gridDim), offsetof(HipParams, kernelParams),
      offsetof(HipParams, sharedMemBytes), sizeof(HipParams)};
  return vendor ? hip[field] : cuda[field];
}
}

API cuInit(unsigned) { return OK; }
API cuDeviceGet(int* out, int ordinal) { *out = ordinal; return ordinal == 0 ? OK : 101; }
API cuDevicePrimaryCtxRetain(void** out, int) { *out = &context_object; return sticky; }
API cuCtxSetCurrent(void* context) { current_context = context; return sticky; }
API cuCtxGetCurrent(void** out) { *out = current_context; return sticky; }
API cuCtxSynchronize() { return sticky; }
API cuModuleLoadData(void** out, const void* image) { return load(out, (const char*)image, false); }
API cuModuleGetFunction(void** out, void* in, const char* name) { return find(out, (Module*)in, name); }
API cuModuleUnload(void* module) { return unload((Module*)module); }
API cuFuncSetAttribute(void* kernel, int what, int value) { return allow((Kernel*)kernel, what, value); }
API cuFuncGetParamInfo(void* kernel, size_t place, size_t* offset, size_t* size) {
  return param((Kernel*)kernel, place, offset, size);
}
API cuKernelGetParamInfo(void* kernel, size_t place, size_t* offset, size_t* size) {
  return param((Kernel*)kernel, place, offset, size);
}
API cuFuncGetName(const char** out, void* kernel) { *out = ((Kernel*)kernel)->name.c_str(); return OK; }
API cuKernelGetName(const char** out, void* kernel) { return cuFuncGetName(out, kernel); }
API cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** arguments, void**) {
  if (!current_context) return INVALID_CONTEXT;
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch((Kernel*)kernel, grid, block, shared, stream, arguments);
}
API cuStreamBeginCapture_v2(void* stream, int) { return begin(stream); }
API cuStreamEndCapture(void* stream, void** out) { return end(stream, out); }
API cuStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                              const void*** last, size_t* count) {
  return info(stream, status, id, graph, last, count);
}
API cuGraphGetNodes(void* graph, void** out, size_t* count) { return nodes_of((Graph*)graph, out, count); }
API cuGraphNodeGetType(void* node, int* out) { return kind_of((Node*)node, out); }
API cuGraphNodeGetDependencies(void* node, void** out, size_t* count) { return before((Node*)node, out, count); }
API cuGraphNodeGetDependentNodes(void* node, void** out, size_t* count) { return after((Node*)node, out, count); }
API cuGraphKernelNodeGetAttribute(void* node, int which, unsigned* out) {
  return attribute((Node*)node, which, out);
}
API cuGraphKernelNodeGetParams_v2(void* node, CudaParams* out) {
  Node* one = (Node*)node;
  if (sticky) return sticky;
  if (!is(one) || one->kind != KERNEL) return INVALID_VALUE;
  Launch& from = one->launch;
  void* kernel = from.kernel;
  const bool library = from.kernel->library;
  *out = CudaParams{library ? nullptr : kernel, from.grid[0] + wrong_readback, from.grid[1], from.grid[2],
                    from.block[0], from.block[1], from.block[2], from.shared_bytes,
                    from.packed ? nullptr : from.pointers.data(), from.packed ? from.extra : nullptr,
                    library ? kernel : nullptr, &context_object};
  return OK;
}
static int cuda_set(Launch* into, Node* node, Exec* exec, const CudaParams* in) {
  if (!current_context) return INVALID_CONTEXT;
  Kernel* kernel = (Kernel*)(in->func ? in->func : in->kern);
  const unsigned grid[] = {in->gridDimX, in->gridDimY, in->gridDimZ};
  const unsigned block[] = {in->blockDimX, in->blockDimY, in->blockDimZ};
  return exec ? set_exec(exec, node, kernel, grid, block, in->sharedMemBytes, in->kernelParams)
              : set_node(node, kernel, grid, block, in->sharedMemBytes, in->kernelParams);
}
API cuGraphKernelNodeSetParams_v2(void* node, const CudaParams* in) {
  return cuda_set(nullptr, (Node*)node, nullptr, in);
}
API cuGraphExecKernelNodeSetParams_v2(void* exec, void* node, const CudaParams* in) {
  return exec ? cuda_set(nullptr, (Node*)node, (Exec*)exec, in) : INVALID_VALUE;
}
API cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) {
  return instantiate(out, (Graph*)graph);
}
API cuGraphLaunch(void* exec, void*) { return replay((Exec*)exec); }
API cuGraphExecDestroy(void* exec) { ((Exec*)exec)->magic = DEAD; delete (Exec*)exec; return OK; }
API cuGraphDestroy(void* graph) { return destroy((Graph*)graph); }
API cuGetErrorName(int code, const char** out) { *out = name_of(code); return OK; }

API hipInit(unsigned) { return OK; }
API hipSetDevice(int ordinal) { return done(ordinal == 0 ? sticky.load() : 101); }
API hipGetDevice(int* out) { *out = 0; return done(sticky); }
API hipGetLastError() { return last_error.exchange(0); }
API hipDeviceSynchronize() { return done(sticky); }
API hipModuleLoadData(void** out, const void* image) { return done(load(out, (const char*)image, false)); }
API hipModuleGetFunction(void** out, void* in, const char* name) { return done(find(out, (Module*)in, name)); }
API hipModuleUnload(void* module) { return done(unload((Module*)module)); }
API hipFuncSetAttribute(const void* kernel, int what, int value) { return done(allow((Kernel*)kernel, what, value)); }
extern "C" const char* hipKernelNameRef(void* kernel) { return ((Kernel*)kernel)->name.c_str(); }
API hipModuleLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void* stream,
                          void** arguments, void**) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return done(launch((Kernel*)kernel, grid, block, shared, stream, arguments));
}
API hipStreamBeginCapture(void* stream, int) { return done(begin(stream)); }
API hipStreamEndCapture(void* stream, void** out) { return done(end(stream, out)); }
API hipStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                               const void*** last, size_t* count) {
  return done(info(stream, status, id, graph, last, count));
}
API hipGraphGetNodes(void* graph, void** out, size_t* count) { return done(nodes_of((Graph*)graph, out, count)); }
API hipGraphNodeGetType(void* node, int* out) { return done(kind_of((Node*)node, out)); }
API hipGraphNodeGetDependencies(void* node, void** out, size_t* count) { return done(before((Node*)node, out, count)); }
API hipGraphNodeGetDependentNodes(void* node, void** out, size_t* count) { return done(after((Node*)node, out, count)); }
API hipGraphKernelNodeGetAttribute(void* node, int which, unsigned* out) {
  return done(attribute((Node*)node, which, out));
}
API hipGraphKernelNodeGetParams(void* node, HipParams* out) {
  Node* one = (Node*)node;
  if (sticky) return done(sticky);
  if (!is(one) || one->kind != KERNEL) return done(INVALID_VALUE);
  Launch& from = one->launch;
  *out = HipParams{{from.block[0], from.block[1], from.block[2]},
                   from.packed ? from.extra : nullptr, from.kernel,
                   {from.grid[0] + wrong_readback, from.grid[1], from.grid[2]},
                   from.packed ? nullptr : from.pointers.data(), from.shared_bytes};
  return OK;
}
static int hip_set(Node* node, Exec* exec, const HipParams* in) {
  if (!in->func) return INVALID_VALUE;
  const unsigned grid[] = {in->gridDim.x, in->gridDim.y, in->gridDim.z};
  const unsigned block[] = {in->blockDim.x, in->blockDim.y, in->blockDim.z};
  Kernel* kernel = (Kernel*)in->func;
  return exec ? set_exec(exec, node, kernel, grid, block, in->sharedMemBytes, in->kernelParams)
              : set_node(node, kernel, grid, block, in->sharedMemBytes, in->kernelParams);
}
API hipGraphKernelNodeSetParams(void* node, const HipParams* in) { return done(hip_set((Node*)node, nullptr, in)); }
API hipGraphExecKernelNodeSetParams(void* exec, void* node, const HipParams* in) {
  return done(exec ? hip_set((Node*)node, (Exec*)exec, in) : INVALID_VALUE);
}
API hipGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) {
  return done(instantiate(out, (Graph*)graph));
}
API hipGraphLaunch(void* exec, void*) { return done(replay((Exec*)exec)); }
API hipGraphExecDestroy(void* exec) { ((Exec*)exec)->magic = DEAD; delete (Exec*)exec; return OK; }
API hipGraphDestroy(void* graph) { return done(destroy((Graph*)graph)); }
extern "C" const char* hipGetErrorName(int code) { return name_of(code); }
