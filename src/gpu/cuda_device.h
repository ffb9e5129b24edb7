// CudaDevice: a GPU through the CUDA driver (gpu/cuda_driver.h), with one stream of its own in the device's primary
// context. Every call is checked; an error names the GPU, the call and CUDA's words. Opened by the backend.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cuda_driver.h"
#include "gpu/device_api.h"

namespace monostep::gpu {

class CudaDevice final : public Device {
 public:
  // Errors: kUnavailable (no driver, no GPU, or none of this number), in words for a person.
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal);
  static Result<std::unique_ptr<CudaDevice>> open(const Driver& driver, int ordinal);
  ~CudaDevice() override;

  Result<DeviceInfo> info() override;
  Result<DevicePtr> allocate(int64_t num_bytes) override;
  void free(DevicePtr memory) override;
  Result<MappedMemory> allocate_mapped(int64_t num_bytes) override;
  void free_mapped(const MappedMemory& memory) override;
  Status upload(DevicePtr to, const void* from, int64_t num_bytes) override;
  Status upload_later(DevicePtr to, const std::byte* from, int64_t num_bytes) override;
  Status download(void* to, DevicePtr from, int64_t num_bytes) override;
  Status fill(DevicePtr to, uint8_t value, int64_t num_bytes) override;
  Result<Kernel> load(std::span<const std::byte> cubin, const char* name) override;
  Status launch(Kernel kernel, const Launch& launch) override;
  Status synchronize() override;
  Result<bool> idle() override;
  Status record(int event_idx) override;
  Result<float> elapsed_ms(int begin_event_idx, int end_event_idx) override;
  Status begin_capture() override;
  Result<Graph> end_capture() override;
  Status launch(Graph graph) override;
  void abandon(Error why) override;

 private:
  struct LoadedModule {
    std::string digest;  // of the cubin: one that is loaded is not loaded again
    DriverModule module = nullptr;
  };
  struct LoadedKernel {
    std::string name;
    DriverFunction function = nullptr;
    int64_t params_bytes = 0;
    int max_shared_bytes = 0;  // dynamic, as far as it was raised
  };

  CudaDevice(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}

  Status start();
  // The context belongs to a thread; each public call makes it this thread's.
  Status activate();
  Status check(DriverStatus status, std::string_view call, std::string_view detail = {}) const;
  Error error(DriverStatus status, std::string_view call, std::string_view detail) const;
  Result<int> attribute(DeviceAttribute attribute) const;
  Result<DriverModule> load_module(std::span<const std::byte> cubin);
  Status raise_shared_bytes(LoadedKernel& kernel, int shared_bytes);

  Driver driver_;
  int ordinal_;
  int device_ = 0;
  DriverContext context_ = nullptr;
  DriverStream stream_ = nullptr;
  bool capturing_ = false;
  std::optional<Error> lost_;
  std::vector<DriverEvent> events_;  // by event_idx; null until recorded
  std::vector<LoadedModule> modules_;
  std::vector<LoadedKernel> kernels_;    // Kernel.handle is the index + 1
  std::vector<DriverGraphExec> graphs_;  // Graph.handle is the index + 1
};

}  // namespace monostep::gpu
