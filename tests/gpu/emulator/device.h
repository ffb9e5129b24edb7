// EmulatedDevice: gpu::Device on the emulator. Memory is host memory with guard zones, a device address is the host
// address, "loading" finds a kernel that was added by name, a launch runs at once on the calling thread. Used by the
// tests of everything above gpu::Device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulator/run.h"
#include "gpu/device_api.h"

namespace monostep::gpu {

struct EmulatedDeviceOptions {
  int num_sms = 4;
  int64_t total_bytes = int64_t{1} << 30;
  int max_shared_bytes_per_cta = 227 << 10;
  uint64_t order_seed = 0;  // of the first launch; each further one has the next (0 stays 0: round robin)
  int64_t max_turns = 100'000'000;
};

class EmulatedDevice : public Device {
 public:
  using KernelFunction = void (*)(const void* params);

  explicit EmulatedDevice(const EmulatedDeviceOptions& options = {}) : options_(options) {}

  // `load` with this name gives this function, whatever the cubin is.
  void add_kernel(const char* name, KernelFunction function) { functions_[name] = function; }

  // Seed of the next launch.
  void set_order_seed(uint64_t order_seed) { options_.order_seed = order_seed; }

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
  // As synchronize: the first failure of a launch or of a guard zone at `free` stays, as on a GPU.
  Result<bool> idle() override;
  Status record(int event_idx) override;
  Result<float> elapsed_ms(int begin_event_idx, int end_event_idx) override;
  Status begin_capture() override;
  Result<Graph> end_capture() override;
  Status launch(Graph graph) override;
  void abandon(Error why) override;

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;  // guard zone, memory, guard zone, with room to align
    int64_t num_bytes = 0;
    bool mapped = false;
  };
  struct KeptLaunch {
    KernelFunction function = nullptr;
    Launch launch;                  // its params point at `params`
    std::vector<std::byte> params;  // [params_bytes]
  };

  Result<DevicePtr> take(int64_t num_bytes, bool mapped);
  void give_back(DevicePtr memory, bool mapped);
  Status check_range(DevicePtr memory, int64_t num_bytes, const char* what) const;
  Status run(const KeptLaunch& kept);
  Status fail(Error error);

  EmulatedDeviceOptions options_;
  std::map<std::string, KernelFunction> functions_;
  std::vector<KernelFunction> kernels_;  // by handle - 1
  std::map<DevicePtr, Memory> memories_;
  int64_t used_bytes_ = 0;
  std::map<int, std::chrono::steady_clock::time_point> events_;
  bool capturing_ = false;
  std::vector<std::vector<KeptLaunch>> graphs_;  // by handle - 1; the last is filled while capturing
  std::optional<Error> failure_;
};

}  // namespace monostep::gpu
