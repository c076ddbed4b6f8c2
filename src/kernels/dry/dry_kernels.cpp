#include "kernels/dry/dry_kernels.h"

namespace onefold {

std::unique_ptr<Kernels> make_dry_kernels(std::unique_ptr<Kernels> like) {
  return std::make_unique<DryKernels>(std::move(like));
}

}  // namespace onefold
