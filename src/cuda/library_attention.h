// Attention by NVIDIA's library, cuDNN, in 16 bits: several times as fast as the tiled kernels. It
// is looked for at run time; where it is missing, or has nothing for a shape, the tiled kernels
// run.
#pragma once

#include <memory>
#include <string>

#include "cuda/ops.h"
#include "device/attention_parts.h"

namespace onefold::cuda {

class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;
  // Whether it was computed. `bytes` of scratch is what the library may use.
  virtual bool forward(const AttentionArgs& args, void* scratch, int64_t bytes,
                       cudaStream_t stream) = 0;
  // The same; sequences are taken `slice` at a time, or, where there are parts, one after the other
  // in these. The gradients' scratch is that of `parts`.
  virtual bool backward(const AttentionArgs& args, const AttentionGradients& gradients,
                        int64_t slice, const AttentionParts& parts, cudaStream_t stream) = 0;
};

// Null where there is none; `problem` then says why.
std::unique_ptr<LibraryAttention> open_library_attention(std::string& problem);

}  // namespace onefold::cuda
