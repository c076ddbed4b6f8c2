#include "cuda/staging.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/check.h"

namespace onefold::cuda {
namespace {

constexpr int64_t kBufferBytes = int64_t{8} << 20;
// Values that are computed are shared out over the pool in pieces of this many bytes.
constexpr int64_t kSharedBytes = int64_t{1} << 18;

// The elements of a contiguous tensor, as many at a time as a buffer holds.
struct Parts {
  std::byte* base;
  int64_t elems, width, part;

  explicit Parts(const Tensor& tensor, int64_t buffer_bytes = kBufferBytes)
      : base(static_cast<std::byte*>(tensor.flat().data)),
        elems(tensor.elems()),
        width(dtype_bytes(tensor.dtype)),
        part(buffer_bytes / width) {}
  int64_t count() const { return (elems + part - 1) / part; }
  int64_t first(int64_t index) const { return index * part; }
  int64_t size(int64_t index) const { return std::min(part, elems - first(index)); }
  size_t bytes(int64_t index) const { return static_cast<size_t>(size(index) * width); }
  std::byte* at(int64_t index) const { return base + first(index) * width; }
};

void make_part(const Parts& parts, int64_t index, const Device::Make& make, Device::Calls calls,
               ThreadPool& pool, std::byte* dst) {
  if (calls == Device::Calls::in_order) return make(parts.first(index), {dst, parts.bytes(index)});
  const int64_t size = parts.size(index), piece = kSharedBytes / parts.width;
  pool.run((size + piece - 1) / piece, [&](int64_t chunk, int) {
    const int64_t begin = chunk * piece, count = std::min(piece, size - begin);
    make(parts.first(index) + begin,
         {dst + begin * parts.width, static_cast<size_t>(count * parts.width)});
  });
}

// A part is on its way while the one before it is taken.
void read_parts(const Parts& parts, const std::array<StagingBuffer, 2>& buffers,
                cudaStream_t stream, const Device::Take& take) {
  const auto begin_copy = [&](int64_t i) {
    const StagingBuffer& buffer = buffers[static_cast<size_t>(i % 2)];
    check(cudaMemcpyAsync(buffer.data, parts.at(i), parts.bytes(i), cudaMemcpyDeviceToHost, stream),
          "copy from the card");
    check(cudaEventRecord(buffer.copied, stream), "record an event");
  };
  if (parts.count() > 0) begin_copy(0);
  for (int64_t i = 0; i < parts.count(); ++i) {
    if (i + 1 < parts.count()) begin_copy(i + 1);
    const StagingBuffer& buffer = buffers[static_cast<size_t>(i % 2)];
    check(cudaEventSynchronize(buffer.copied), "copy from the card");
    take(parts.first(i), {buffer.data, parts.bytes(i)});
  }
}

}  // namespace

Staging::Staging(cudaStream_t stream) : stream_(stream) {
  try {
    for (StagingBuffer& buffer : buffers_) {
      check(cudaMallocHost(reinterpret_cast<void**>(&buffer.data), kBufferBytes),
            "take pinned memory");
      check(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming), "make an event");
    }
  } catch (...) {
    free();
    throw;
  }
}

Staging::~Staging() {
  (void)cudaStreamSynchronize(stream_);
  free();
}

void Staging::free() {
  for (StagingBuffer& buffer : buffers_) {
    if (buffer.copied) (void)cudaEventDestroy(buffer.copied);
    if (buffer.data) (void)cudaFreeHost(buffer.data);
  }
}

void Staging::write(Tensor dst, const Device::Make& make, Device::Calls calls, ThreadPool& pool) {
  std::lock_guard lock(mutex_);
  const Parts parts(dst);
  for (int64_t i = 0; i < parts.count(); ++i) {
    std::byte* const data = room(parts.bytes(i));
    make_part(parts, i, make, calls, pool, data);
    check(cudaMemcpyAsync(parts.at(i), data, parts.bytes(i), cudaMemcpyHostToDevice, stream_),
          "copy to the card");
    check(cudaEventRecord(buffers_[buffer_].copied, stream_), "record an event");
  }
}

std::byte* Staging::room(size_t bytes) {
  constexpr size_t kApart = 64;  // of elements of any type
  if (filled_ + bytes > size_t{kBufferBytes}) {
    buffer_ = 1 - buffer_;
    filled_ = 0;
    check(cudaEventSynchronize(buffers_[buffer_].copied), "copy to the card");
  }
  std::byte* const data = buffers_[buffer_].data + filled_;
  filled_ += (bytes + kApart - 1) / kApart * kApart;
  return data;
}

void Staging::read(Tensor src, const Device::Take& take) {
  std::lock_guard lock(mutex_);
  const Parts parts(src);
  filled_ = kBufferBytes;  // if `take` throws, a copy may be under way
  read_parts(parts, buffers_, stream_, take);
  if (parts.count() > 0) filled_ = 0;  // all copies before its own are done, too
}

void read_beside(cudaStream_t stream, Tensor src, const Device::Take& take,
                 std::span<std::byte> staging) {
  // Parts of whole elements of any type.
  const size_t half = staging.size() / 2 / 64 * 64;
  require(half > 0, "{} bytes to read a tensor through", staging.size());
  std::array<StagingBuffer, 2> buffers{{{staging.data()}, {staging.data() + half}}};
  const auto free = [&] {
    (void)cudaStreamSynchronize(stream);  // the memory is the caller's again
    for (const StagingBuffer& buffer : buffers)
      if (buffer.copied) (void)cudaEventDestroy(buffer.copied);
  };
  try {
    for (StagingBuffer& buffer : buffers)
      check(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming), "make an event");
    read_parts(Parts(src, static_cast<int64_t>(half)), buffers, stream, take);
  } catch (...) {
    free();
    throw;
  }
  free();
}

}  // namespace onefold::cuda
