// Which cores a rank computes on. Each rank of a machine is bound to a share of its cores, cut
// along the topology (packages, NUMA nodes, caches), so that threads of different ranks do not
// compete for a core and do not migrate between caches.
#pragma once

namespace onefold {

// Divides the cores that this process may use among `ranks`, and binds the calling thread to the
// share of `rank`; threads that it starts later inherit that. Returns how many cores the share has:
// the number of threads that suits it. With more ranks than cores nothing is bound, and each has 1.
// What the process may use is looked up once, at the first call, before any thread is bound.
int bind_rank(int rank, int ranks);

}  // namespace onefold
