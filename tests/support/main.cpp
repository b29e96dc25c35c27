// Runs the tests of a program; with SLUICE_TEST_DEVICE=cuda on the CUDA device (support/contexts.h).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "core/device.h"
#include "support/contexts.h"
#include "support/device_heap.h"
#include "support/not_on_cuda.h"

namespace sluice::test {

namespace {

constexpr int failed = 1, device_lost = 3;

#ifdef SLUICE_TEST_HEAP

constexpr int64_t heap_bytes = int64_t{6} << 30;

// Tells each test case as it begins, "[12] its name", and ends the run at the one that broke the device: after a fault in a kernel
// it answers nothing but errors. --first=13 goes on with the next.
class CudaListener : public doctest::IReporter {
 public:
  explicit CudaListener(const doctest::ContextOptions& options) : options_(options) {}
  void test_case_start(const doctest::TestCaseData& test) override {
    if (on_cuda()) std::cout << "[" << std::max(options_.first, 1U) + started_++ << "] " << test.m_name << std::endl;
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    if (!on_cuda()) return;
    try {
      synchronize(test_device());
    } catch (const Error& e) {
      std::cout << "THE DEVICE IS LOST: " << e.what() << std::endl;
      std::_Exit(device_lost);
    }
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  const doctest::ContextOptions& options_;
  unsigned started_ = 0;
};
REGISTER_LISTENER("cuda", 1, CudaListener);

int run_on_cuda(doctest::Context& context) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // a test reads what a kernel wrote as soon as the op returns
  setenv("SLUICE_CUDA_SYNC", "1", 1);
  {
    const auto devices = cuda_devices();
    check(!devices.empty(), ErrorCode::device, "the driver shows no CUDA device");
    std::cout << "on " << devices[0].name << "; not run there:\n";
  }
  for (const NotOnCuda& test : not_on_cuda) {
    context.addFilter("test-case-exclude", test.name);
    std::cout << "  " << test.name << "    " << test.reason << "\n";
  }
  allocate_from(pinned_allocate(heap_bytes), static_cast<size_t>(heap_bytes));
  const int result = context.run();
  std::cout << std::flush;
  std::_Exit(result);  // the heap lies in the driver's memory, which goes before static objects do
}

#else

int run_on_cuda(doctest::Context&) {
  throw Error(ErrorCode::device, "this program was built without CUDA; configure with the preset cuda");
}

#endif

int run(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const char* device = std::getenv("SLUICE_TEST_DEVICE");
  const std::string name = device == nullptr ? "" : device;
  if (name.empty() || name == "cpu") return context.run();
  try {
    check(on_cuda(), ErrorCode::bad_config, "it may be cpu or cuda");
    return run_on_cuda(context);
  } catch (const Error& e) {
    std::cerr << "SLUICE_TEST_DEVICE=" << name << ": " << e.what() << "\n";
    return failed;
  }
}

}  // namespace

}  // namespace sluice::test

int main(int argc, char** argv) { return sluice::test::run(argc, argv); }
