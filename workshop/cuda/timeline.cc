// The time line of a program's kernels and copies, from CUPTI's activity records:
//   g++ -std=c++20 -shared -fPIC -O1 timeline.cc -o timeline.so -I CUDA/include -L CUDA/lib -lcupti
//   CUDA_INJECTION64_PATH=./timeline.so TIMELINE=out step_bench ... && python3 timeline.py out
// Writes one line for each: start and end in ns, grid (copies: bytes and kind), name.

#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Record {
  std::uint64_t start, end;
  long long x, y;
  std::string name;
};
std::mutex g_mutex;
// Never freed: records come until the process has ended.
std::vector<Record>& records() {
  static auto* const all = new std::vector<Record>;
  return *all;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records) {
  *bytes = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *bytes));
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t used) {
  const std::lock_guard lock(g_mutex);
  CUpti_Activity* a = nullptr;
  while (cuptiActivityGetNextRecord(buffer, used, &a) == CUPTI_SUCCESS) {
    if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(a);
      records().push_back({k->start, k->end, k->gridX, k->gridY, k->name});
    } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* c = reinterpret_cast<const CUpti_ActivityMemcpy5*>(a);
      records().push_back(
          {c->start, c->end, static_cast<long long>(c->bytes), c->copyKind, "memcpy"});
    }
  }
  std::free(buffer);
}

void write_records() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const char* path = std::getenv("TIMELINE");
  std::FILE* file = std::fopen(path != nullptr ? path : "timeline", "w");
  if (file == nullptr) return;
  for (const Record& r : records()) {
    std::fprintf(file, "%llu %llu %lld %lld %s\n", static_cast<unsigned long long>(r.start),
                 static_cast<unsigned long long>(r.end), r.x, r.y, r.name.c_str());
  }
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  std::atexit(write_records);
  return 1;
}
