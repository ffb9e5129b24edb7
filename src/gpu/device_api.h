// Device: one GPU as the launcher sees it: memory, copies, kernels, events and captured graphs on one stream.
// CudaDevice implements it over the driver; the emulator of the tests implements it on the host. A device is used by
// one thread at a time. Work is done in call order; launch, fill, record and upload_later return before their work is
// done, all others after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace monostep::gpu {

using DevicePtr = uint64_t;  // an address in device memory; 0 is no memory

// Pinned host memory that kernels read and write in place.
struct MappedMemory {
  std::byte* host = nullptr;
  DevicePtr device = 0;
  int64_t num_bytes = 0;
};

// Opaque; valid as long as the device that gave it.
struct Kernel {
  uint64_t handle = 0;
};
struct Graph {
  uint64_t handle = 0;
};

struct Launch {
  int num_ctas = 0;
  int threads = 0;               // a CTA
  int shared_bytes = 0;          // dynamic shared memory a CTA
  bool cooperative = false;      // all CTAs resident at once, or the launch is refused
  const void* params = nullptr;  // the kernel's one parameter, a plain struct passed by value; copied by the call
  int params_bytes = 0;
};

struct DeviceInfo {
  std::string name;
  int num_sms = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // at the time of the question
  int max_shared_bytes_per_cta = 0;
  bool cooperative = false;  // cooperative launches are supported
  int l2_bytes = 0;
};

class Device {
 public:
  static constexpr int kMaxEvents = 4096;

  virtual ~Device() = default;

  virtual Result<DeviceInfo> info() = 0;

  // At least 256-byte aligned, not cleared. Errors: kExhausted, with the bytes asked for and free.
  virtual Result<DevicePtr> allocate(int64_t num_bytes) = 0;
  virtual void free(DevicePtr memory) = 0;
  virtual Result<MappedMemory> allocate_mapped(int64_t num_bytes) = 0;
  virtual void free_mapped(const MappedMemory& memory) = 0;

  // Behind all earlier work, and done when they return. Never while a graph is captured.
  virtual Status upload(DevicePtr to, const void* from, int64_t num_bytes) = 0;
  // Returns at once: `from` is mapped memory of this device and stays as it is until the work is done.
  virtual Status upload_later(DevicePtr to, const std::byte* from, int64_t num_bytes) = 0;
  virtual Status download(void* to, DevicePtr from, int64_t num_bytes) = 0;
  virtual Status fill(DevicePtr to, uint8_t value, int64_t num_bytes) = 0;

  // Loads a cubin and finds one kernel (its extern "C" name) in it.
  virtual Result<Kernel> load(std::span<const std::byte> cubin, const char* name) = 0;
  virtual Status launch(Kernel kernel, const Launch& launch) = 0;

  // Waits for all work. It has no bound: whoever launched work that may hang polls idle() under its own limit first.
  virtual Status synchronize() = 0;
  // Whether all work is done, without waiting; an error if some of it failed.
  virtual Result<bool> idle() = 0;

  // Marks this point of the stream; event_idx < kMaxEvents. elapsed_ms waits until `end` is passed.
  virtual Status record(int event_idx) = 0;
  virtual Result<float> elapsed_ms(int begin_event_idx, int end_event_idx) = 0;

  // Launches and fills between the two are kept in the graph instead of run, with the parameters of that time.
  virtual Status begin_capture() = 0;
  virtual Result<Graph> end_capture() = 0;
  virtual Status launch(Graph graph) = 0;

  // The device does not answer: from now on every call fails at once with `why`, and memory is not given back, since
  // work that never ends may still use it and freeing would wait for it.
  virtual void abandon(Error why) = 0;
};

// Device memory that is freed when the object goes; the device must outlive it.
class Buffer {
 public:
  static Result<Buffer> create(Device& device, int64_t num_bytes) {
    TRY_ASSIGN(const DevicePtr memory, device.allocate(num_bytes));
    return Buffer(device, memory, num_bytes);
  }

  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Buffer() {
    if (device_ != nullptr) device_->free(memory_);
  }

  DevicePtr ptr() const { return memory_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  Buffer(Device& device, DevicePtr memory, int64_t num_bytes)
      : device_(&device), memory_(memory), num_bytes_(num_bytes) {}

  Device* device_ = nullptr;
  DevicePtr memory_ = 0;
  int64_t num_bytes_ = 0;
};

// The same for pinned host memory.
class MappedBuffer {
 public:
  static Result<MappedBuffer> create(Device& device, int64_t num_bytes) {
    TRY_ASSIGN(const MappedMemory memory, device.allocate_mapped(num_bytes));
    return MappedBuffer(device, memory);
  }

  MappedBuffer() = default;
  MappedBuffer(MappedBuffer&& other) noexcept { *this = std::move(other); }
  MappedBuffer& operator=(MappedBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~MappedBuffer() {
    if (device_ != nullptr) device_->free_mapped(memory_);
  }

  std::byte* host() const { return memory_.host; }
  DevicePtr ptr() const { return memory_.device; }
  int64_t num_bytes() const { return memory_.num_bytes; }

 private:
  MappedBuffer(Device& device, const MappedMemory& memory) : device_(&device), memory_(memory) {}

  Device* device_ = nullptr;
  MappedMemory memory_;
};

}  // namespace monostep::gpu
