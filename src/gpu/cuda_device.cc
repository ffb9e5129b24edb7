// Device calls as driver calls, each made in the device's own context and checked.
#include "gpu/cuda_device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sha256.h"
#include "gpu/cubin.h"

namespace monostep::gpu {
namespace {

constexpr int kDefaultSharedBytes = 48 * 1024;  // dynamic shared memory that a kernel may have without asking

Error unavailable(std::string text) { return {Code::kUnavailable, std::move(text), {}}; }

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int ordinal) {
  TRY_ASSIGN(const Driver driver, open_driver());
  return open(driver, ordinal);
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const Driver& driver, int ordinal) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, ordinal));
  TRY(device->start());
  return device;
}

Status CudaDevice::start() {
  const DriverStatus started = driver_.init(0);
  if (started == DriverStatus::kNoDevice) return unavailable("the driver finds no GPU");
  if (started != DriverStatus::kSuccess) {
    return unavailable("the CUDA driver does not start: " + driver_error(driver_, started, "cuInit").text);
  }
  int num_devices = 0;
  TRY(check(driver_.device_get_count(&num_devices), "cuDeviceGetCount"));
  if (num_devices == 0) return unavailable("the driver finds no GPU");
  if (ordinal_ < 0 || ordinal_ >= num_devices) {
    return unavailable("GPU " + std::to_string(ordinal_) + " is not there: the driver finds " +
                       std::to_string(num_devices));
  }
  TRY(check(driver_.device_get(&device_, ordinal_), "cuDeviceGet"));
  TRY(check(driver_.primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain"));
  TRY(activate());
  return check(driver_.stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
}

// After a failed launch these calls fail too; there is nobody left to tell. With work that never ends they would wait
// for it: the end of the process takes everything back.
CudaDevice::~CudaDevice() {
  if (context_ == nullptr || lost_) return;
  driver_.context_set_current(context_);
  for (const DriverGraphExec graph : graphs_) driver_.graph_exec_destroy(graph);
  for (const DriverEvent event : events_) {
    if (event != nullptr) driver_.event_destroy(event);
  }
  for (const LoadedModule& loaded : modules_) driver_.module_unload(loaded.module);
  if (stream_ != nullptr) driver_.stream_destroy(stream_);
  driver_.primary_context_release(device_);
}

Error CudaDevice::error(DriverStatus status, std::string_view call, std::string_view detail) const {
  Error error = driver_error(driver_, status, call, detail);
  error.place = "GPU " + std::to_string(ordinal_);
  return error;
}

Status CudaDevice::check(DriverStatus status, std::string_view call, std::string_view detail) const {
  if (status == DriverStatus::kSuccess) return {};
  return error(status, call, detail);
}

Status CudaDevice::activate() {
  if (lost_) return *lost_;
  return check(driver_.context_set_current(context_), "cuCtxSetCurrent");
}

void CudaDevice::abandon(Error why) {
  capturing_ = false;
  if (!lost_) lost_ = std::move(why);
}

Result<int> CudaDevice::attribute(DeviceAttribute attribute) const {
  int value = 0;
  TRY(check(driver_.device_get_attribute(&value, attribute, device_), "cuDeviceGetAttribute"));
  return value;
}

Result<DeviceInfo> CudaDevice::info() {
  TRY(activate());
  DeviceInfo info;
  char name[256] = {};
  TRY(check(driver_.device_get_name(name, sizeof(name) - 1, device_), "cuDeviceGetName"));
  info.name = name;
  TRY_ASSIGN(info.num_sms, attribute(DeviceAttribute::kNumSms));
  TRY_ASSIGN(info.compute_major, attribute(DeviceAttribute::kComputeMajor));
  TRY_ASSIGN(info.compute_minor, attribute(DeviceAttribute::kComputeMinor));
  TRY_ASSIGN(info.max_shared_bytes_per_cta, attribute(DeviceAttribute::kMaxSharedBytesOptIn));
  TRY_ASSIGN(info.l2_bytes, attribute(DeviceAttribute::kL2Bytes));
  TRY_ASSIGN(const int cooperative, attribute(DeviceAttribute::kCooperativeLaunch));
  info.cooperative = cooperative != 0;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  TRY(check(driver_.mem_get_info(&free_bytes, &total_bytes), "cuMemGetInfo"));
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.total_bytes = static_cast<int64_t>(total_bytes);
  return info;
}

Result<DevicePtr> CudaDevice::allocate(int64_t num_bytes) {
  CHECK(num_bytes > 0, "an allocation of no bytes");
  TRY(activate());
  DevicePtr memory = 0;
  const DriverStatus status = driver_.mem_alloc(&memory, static_cast<size_t>(num_bytes));
  if (status == DriverStatus::kSuccess) return memory;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  std::string detail = std::to_string(num_bytes) + " bytes asked for";
  if (driver_.mem_get_info(&free_bytes, &total_bytes) == DriverStatus::kSuccess) {
    detail += ", " + std::to_string(free_bytes) + " free";
  }
  return error(status, "cuMemAlloc", detail);
}

void CudaDevice::free(DevicePtr memory) {
  if (memory == 0 || !activate().ok()) return;
  driver_.mem_free(memory);
}

Result<MappedMemory> CudaDevice::allocate_mapped(int64_t num_bytes) {
  CHECK(num_bytes > 0, "an allocation of no bytes");
  TRY(activate());
  void* host = nullptr;
  TRY(check(driver_.mem_host_alloc(&host, static_cast<size_t>(num_bytes), kHostAllocPortable | kHostAllocMapped),
            "cuMemHostAlloc", std::to_string(num_bytes) + " bytes asked for"));
  MappedMemory memory{static_cast<std::byte*>(host), 0, num_bytes};
  const DriverStatus mapped = driver_.mem_host_get_device_pointer(&memory.device, host, 0);
  if (mapped != DriverStatus::kSuccess) driver_.mem_free_host(host);
  TRY(check(mapped, "cuMemHostGetDevicePointer"));
  return memory;
}

void CudaDevice::free_mapped(const MappedMemory& memory) {
  if (memory.host == nullptr || !activate().ok()) return;
  driver_.mem_free_host(memory.host);
}

Status CudaDevice::upload(DevicePtr to, const void* from, int64_t num_bytes) {
  CHECK(!capturing_, "a copy that is waited for while a graph is captured");
  if (num_bytes == 0) return {};
  TRY(activate());
  TRY(check(driver_.memcpy_to_device(to, from, static_cast<size_t>(num_bytes), stream_), "cuMemcpyHtoDAsync"));
  return check(driver_.stream_synchronize(stream_), "cuStreamSynchronize after cuMemcpyHtoDAsync");
}

Status CudaDevice::upload_later(DevicePtr to, const std::byte* from, int64_t num_bytes) {
  CHECK(!capturing_, "a copy of a step's data while a graph is captured");
  if (num_bytes == 0) return {};
  TRY(activate());
  return check(driver_.memcpy_to_device(to, from, static_cast<size_t>(num_bytes), stream_), "cuMemcpyHtoDAsync");
}

Status CudaDevice::download(void* to, DevicePtr from, int64_t num_bytes) {
  CHECK(!capturing_, "a copy that is waited for while a graph is captured");
  if (num_bytes == 0) return {};
  TRY(activate());
  TRY(check(driver_.memcpy_to_host(to, from, static_cast<size_t>(num_bytes), stream_), "cuMemcpyDtoHAsync"));
  return check(driver_.stream_synchronize(stream_), "cuStreamSynchronize after cuMemcpyDtoHAsync");
}

Status CudaDevice::fill(DevicePtr to, uint8_t value, int64_t num_bytes) {
  if (num_bytes == 0) return {};
  TRY(activate());
  return check(driver_.memset_bytes(to, value, static_cast<size_t>(num_bytes), stream_), "cuMemsetD8Async");
}

Result<DriverModule> CudaDevice::load_module(std::span<const std::byte> cubin) {
  std::string digest = sha256_hex(cubin);
  const auto known = std::find_if(modules_.begin(), modules_.end(),
                                  [&digest](const LoadedModule& loaded) { return loaded.digest == digest; });
  if (known != modules_.end()) return known->module;
  DriverModule module = nullptr;
  TRY(check(driver_.module_load(&module, cubin.data(), 0, nullptr, nullptr), "cuModuleLoadDataEx"));
  modules_.push_back({std::move(digest), module});
  return module;
}

Result<Kernel> CudaDevice::load(std::span<const std::byte> cubin, const char* name) {
  TRY_ASSIGN(const std::vector<KernelResources> kernels, read_cubin(cubin));  // the driver does not bound its reads
  const auto found = std::find_if(kernels.begin(), kernels.end(),
                                  [name](const KernelResources& kernel) { return kernel.name == name; });
  if (found == kernels.end()) return Error{Code::kNotFound, "the cubin has no kernel " + std::string(name), {}};
  TRY(activate());
  TRY_ASSIGN(const DriverModule module, load_module(cubin));
  LoadedKernel loaded{name, nullptr, found->params_bytes, kDefaultSharedBytes};
  TRY(check(driver_.module_get_function(&loaded.function, module, name), "cuModuleGetFunction", name));
  kernels_.push_back(std::move(loaded));
  return Kernel{kernels_.size()};
}

Status CudaDevice::raise_shared_bytes(LoadedKernel& kernel, int shared_bytes) {
  if (shared_bytes <= kernel.max_shared_bytes) return {};
  TRY(check(driver_.function_set_attribute(kernel.function, FunctionAttribute::kMaxDynamicSharedBytes, shared_bytes),
            "cuFuncSetAttribute", kernel.name + " with " + std::to_string(shared_bytes) + " bytes of shared memory"));
  kernel.max_shared_bytes = shared_bytes;
  return {};
}

Status CudaDevice::launch(Kernel kernel, const Launch& launch) {
  CHECK(kernel.handle >= 1 && kernel.handle <= kernels_.size(), "a kernel that this device loaded");
  LoadedKernel& loaded = kernels_[kernel.handle - 1];
  CHECK(launch.params_bytes == loaded.params_bytes,
        "the parameter struct has the size that the kernel was compiled with");
  TRY(activate());
  TRY(raise_shared_bytes(loaded, launch.shared_bytes));
  LaunchAttribute cooperative = {LaunchAttribute::kCooperative, 0, {1}};
  const LaunchConfig config = {{static_cast<uint32_t>(launch.num_ctas), 1, 1},
                               {static_cast<uint32_t>(launch.threads), 1, 1},
                               static_cast<uint32_t>(launch.shared_bytes),
                               stream_,
                               &cooperative,
                               launch.cooperative ? 1u : 0u};
  void* params[] = {const_cast<void*>(launch.params)};  // the driver only reads it
  const DriverStatus status = driver_.launch_kernel(&config, loaded.function, params, nullptr);
  if (status == DriverStatus::kSuccess) return {};
  return error(status, "cuLaunchKernelEx",
               loaded.name + ": " + std::to_string(launch.num_ctas) + " CTAs of " + std::to_string(launch.threads) +
                   " threads and " + std::to_string(launch.shared_bytes) + " bytes of shared memory" +
                   (launch.cooperative ? ", cooperative" : ""));
}

Status CudaDevice::synchronize() {
  CHECK(!capturing_, "a wait while a graph is captured");
  TRY(activate());
  return check(driver_.stream_synchronize(stream_), "cuStreamSynchronize");
}

Result<bool> CudaDevice::idle() {
  CHECK(!capturing_, "a query while a graph is captured");
  TRY(activate());
  const DriverStatus status = driver_.stream_query(stream_);
  if (status == DriverStatus::kNotReady) return false;
  TRY(check(status, "cuStreamQuery"));
  return true;
}

Status CudaDevice::record(int event_idx) {
  CHECK(event_idx >= 0 && event_idx < kMaxEvents, "an event below kMaxEvents");
  TRY(activate());
  if (events_.size() <= static_cast<size_t>(event_idx)) events_.resize(static_cast<size_t>(event_idx) + 1, nullptr);
  DriverEvent& event = events_[static_cast<size_t>(event_idx)];
  if (event == nullptr) TRY(check(driver_.event_create(&event, 0), "cuEventCreate"));
  return check(driver_.event_record(event, stream_), "cuEventRecord");
}

Result<float> CudaDevice::elapsed_ms(int begin_event_idx, int end_event_idx) {
  for (const int event_idx : {begin_event_idx, end_event_idx}) {
    CHECK(event_idx >= 0 && event_idx < static_cast<int>(std::ssize(events_)), "an event that was recorded");
    CHECK(events_[static_cast<size_t>(event_idx)] != nullptr, "an event that was recorded");
  }
  TRY(activate());
  const DriverEvent begin = events_[static_cast<size_t>(begin_event_idx)];
  const DriverEvent end = events_[static_cast<size_t>(end_event_idx)];
  TRY(check(driver_.event_synchronize(end), "cuEventSynchronize"));
  float ms = 0;
  TRY(check(driver_.event_elapsed_time(&ms, begin, end), "cuEventElapsedTime"));
  return ms;
}

Status CudaDevice::begin_capture() {
  CHECK(!capturing_, "one capture at a time");
  TRY(activate());
  TRY(check(driver_.stream_begin_capture(stream_, CaptureMode::kThreadLocal), "cuStreamBeginCapture"));
  capturing_ = true;
  return {};
}

Result<Graph> CudaDevice::end_capture() {
  CHECK(capturing_, "a capture that was begun");
  capturing_ = false;
  TRY(activate());
  DriverGraph graph = nullptr;
  TRY(check(driver_.stream_end_capture(stream_, &graph), "cuStreamEndCapture"));
  DriverGraphExec exec = nullptr;
  const DriverStatus status = driver_.graph_instantiate(&exec, graph, 0);
  driver_.graph_destroy(graph);
  TRY(check(status, "cuGraphInstantiateWithFlags"));
  graphs_.push_back(exec);
  return Graph{graphs_.size()};
}

Status CudaDevice::launch(Graph graph) {
  CHECK(graph.handle >= 1 && graph.handle <= graphs_.size(), "a graph that this device captured");
  TRY(activate());
  return check(driver_.graph_launch(graphs_[graph.handle - 1], stream_), "cuGraphLaunch");
}

}  // namespace monostep::gpu
