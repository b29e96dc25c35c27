// The gradient of a real-analytic scalar function by the complex step: df/dx_i = Im f(x + i h e_i) / h, exact to rounding,
// with no step size to choose (Squire & Trapp 1998, SIAM Review 40(1)).
#pragma once

#include <complex>
#include <vector>

namespace sluice::test {

using Complex = std::complex<double>;

// f: (const std::vector<Complex>&) -> Complex
template <class F>
std::vector<double> complex_step_gradient(const std::vector<double>& x, F f) {
  constexpr double h = 1e-30;
  std::vector<Complex> z(x.begin(), x.end());
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    z[i] = Complex(x[i], h);
    gradient[i] = f(z).imag() / h;
    z[i] = Complex(x[i], 0);
  }
  return gradient;
}

}  // namespace sluice::test
