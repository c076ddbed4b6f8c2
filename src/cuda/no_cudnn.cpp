// In the place of cudnn_attention.cpp where cuDNN's headers were not found.
#include "cuda/library_attention.h"

namespace onefold::cuda {

std::unique_ptr<LibraryAttention> open_library_attention(std::string& problem) {
  problem = "this build has no cuDNN: its headers and those of its frontend were not found";
  return nullptr;
}

}  // namespace onefold::cuda
