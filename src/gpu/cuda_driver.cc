// Fills the table of the driver's entry points by dlsym, and words its errors.
#include "gpu/cuda_driver.h"

#include <dlfcn.h>

#include <string>

namespace monostep::gpu {
namespace {

// Looks entry points up and remembers the first that is missing.
class Binder {
 public:
  explicit Binder(void* library) : library_(library) {}

  template <typename Function>
  void bind(Function*& entry, const char* name) {
    entry = reinterpret_cast<Function*>(dlsym(library_, name));
    if (entry == nullptr && missing_ == nullptr) missing_ = name;
  }

  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

// The versions (_v2) are those that cuda.h maps the plain names to.
void bind_device(Binder& binder, Driver& driver) {
  binder.bind(driver.init, "cuInit");
  binder.bind(driver.get_error_name, "cuGetErrorName");
  binder.bind(driver.get_error_string, "cuGetErrorString");
  binder.bind(driver.device_get_count, "cuDeviceGetCount");
  binder.bind(driver.device_get, "cuDeviceGet");
  binder.bind(driver.device_get_name, "cuDeviceGetName");
  binder.bind(driver.device_get_attribute, "cuDeviceGetAttribute");
  binder.bind(driver.primary_context_retain, "cuDevicePrimaryCtxRetain");
  binder.bind(driver.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  binder.bind(driver.context_set_current, "cuCtxSetCurrent");
}

void bind_memory(Binder& binder, Driver& driver) {
  binder.bind(driver.mem_get_info, "cuMemGetInfo_v2");
  binder.bind(driver.mem_alloc, "cuMemAlloc_v2");
  binder.bind(driver.mem_free, "cuMemFree_v2");
  binder.bind(driver.mem_host_alloc, "cuMemHostAlloc");
  binder.bind(driver.mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2");
  binder.bind(driver.mem_free_host, "cuMemFreeHost");
  binder.bind(driver.memcpy_to_device, "cuMemcpyHtoDAsync_v2");
  binder.bind(driver.memcpy_to_host, "cuMemcpyDtoHAsync_v2");
  binder.bind(driver.memset_bytes, "cuMemsetD8Async");
}

void bind_work(Binder& binder, Driver& driver) {
  binder.bind(driver.module_load, "cuModuleLoadDataEx");
  binder.bind(driver.module_unload, "cuModuleUnload");
  binder.bind(driver.module_get_function, "cuModuleGetFunction");
  binder.bind(driver.function_set_attribute, "cuFuncSetAttribute");
  binder.bind(driver.launch_kernel, "cuLaunchKernelEx");
  binder.bind(driver.stream_create, "cuStreamCreate");
  binder.bind(driver.stream_destroy, "cuStreamDestroy_v2");
  binder.bind(driver.stream_synchronize, "cuStreamSynchronize");
  binder.bind(driver.stream_query, "cuStreamQuery");
  binder.bind(driver.event_create, "cuEventCreate");
  binder.bind(driver.event_destroy, "cuEventDestroy_v2");
  binder.bind(driver.event_record, "cuEventRecord");
  binder.bind(driver.event_synchronize, "cuEventSynchronize");
  binder.bind(driver.event_elapsed_time, "cuEventElapsedTime");
  binder.bind(driver.stream_begin_capture, "cuStreamBeginCapture_v2");
  binder.bind(driver.stream_end_capture, "cuStreamEndCapture");
  binder.bind(driver.graph_instantiate, "cuGraphInstantiateWithFlags");
  binder.bind(driver.graph_launch, "cuGraphLaunch");
  binder.bind(driver.graph_destroy, "cuGraphDestroy");
  binder.bind(driver.graph_exec_destroy, "cuGraphExecDestroy");
}

Code code_of(DriverStatus status) {
  switch (status) {
    case DriverStatus::kOutOfMemory: return Code::kExhausted;
    case DriverStatus::kNoDevice: return Code::kUnavailable;
    default: return Code::kDeviceFailed;
  }
}

}  // namespace

Result<Driver> open_driver(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error{Code::kUnavailable, "no CUDA driver (" + std::string(library) + ") found: " + dlerror(), {}};
  }
  Driver driver = {};
  Binder binder(handle);
  bind_device(binder, driver);
  bind_memory(binder, driver);
  bind_work(binder, driver);
  if (binder.missing() != nullptr) {
    const std::string missing = binder.missing();
    dlclose(handle);
    return Error{Code::kUnavailable, "the CUDA driver is too old: it has no " + missing, library};
  }
  return driver;
}

Error driver_error(const Driver& driver, DriverStatus status, std::string_view call, std::string_view detail) {
  const char* name = nullptr;
  const char* words = nullptr;
  // A status that the driver does not know leaves the name unset.
  if (driver.get_error_name(status, &name) != DriverStatus::kSuccess) name = nullptr;
  if (driver.get_error_string(status, &words) != DriverStatus::kSuccess) words = nullptr;
  std::string text = std::string(call) + ": ";
  text += name != nullptr ? std::string(name) : "status " + std::to_string(static_cast<int>(status));
  if (words != nullptr) text += " (" + std::string(words) + ")";
  if (!detail.empty()) text += ", " + std::string(detail);
  return {code_of(status), std::move(text), {}};
}

}  // namespace monostep::gpu
