#pragma once

namespace tandem::kernels::cpu {

/// Elementary functions over sixteen lanes `L`. Each is one fixed chain of IEEE operations, so
/// that every instruction set gives the same bits. NaN in, NaN out.
template <typename L>
struct Math {
  using F32 = typename L::F32;

  /// e^x within 2 ulp for x in [-80, 88]; 0 below -80; e^88 above 88. Polynomial: Cephes expf.
  static F32 exp(F32 x) {
    const F32 lowest = L::set1(-80.0F);
    const F32 clamped = L::max(lowest, L::min(L::set1(88.0F), x));
    const F32 n = L::round(L::mul(clamped, L::set1(1.44269504088896341F)));
    F32 r = L::fnma(n, L::set1(0.693359375F), clamped);
    r = L::fnma(n, L::set1(-2.12194440e-4F), r);
    F32 p = L::set1(1.9875691500e-4F);
    p = L::fma(p, r, L::set1(1.3981999507e-3F));
    p = L::fma(p, r, L::set1(8.3334519073e-3F));
    p = L::fma(p, r, L::set1(4.1665795894e-2F));
    p = L::fma(p, r, L::set1(1.6666665459e-1F));
    p = L::fma(p, r, L::set1(5.0000001201e-1F));
    p = L::fma(p, L::mul(r, r), r);
    const F32 y = L::mul(L::add(p, L::set1(1.0F)), L::pow2(n));
    return L::select_less(x, lowest, L::set1(0.0F), y);
  }

  /// tanh within 3 ulp. Polynomial: Cephes tanhf.
  static F32 tanh(F32 x) {
    const F32 zero = L::set1(0.0F);
    const F32 one = L::set1(1.0F);
    const F32 magnitude = L::select_less(x, zero, L::sub(zero, x), x);
    const F32 e = exp(L::add(magnitude, magnitude));
    const F32 large = L::sub(one, L::div(L::set1(2.0F), L::add(e, one)));
    const F32 signed_large = L::select_less(x, zero, L::sub(zero, large), large);
    const F32 z = L::mul(x, x);
    F32 p = L::set1(-5.70498872745e-3F);
    p = L::fma(p, z, L::set1(2.06390887954e-2F));
    p = L::fma(p, z, L::set1(-5.37397155531e-2F));
    p = L::fma(p, z, L::set1(1.33314422036e-1F));
    p = L::fma(p, z, L::set1(-3.33332819422e-1F));
    const F32 small = L::fma(L::mul(p, z), x, x);
    return L::select_less(magnitude, L::set1(0.625F), small, signed_large);
  }

  /// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + e^(-2u)): no
  /// cancellation where tanh is close to -1. spec/model.md section 7.
  static F32 gelu_tanh(F32 x) {
    const F32 cubic = L::fma(L::mul(x, x), L::set1(0.044715F), L::set1(1.0F));
    const F32 exponent = L::mul(L::mul(x, cubic), L::set1(-1.5957691216057308F));
    return L::div(x, L::add(L::set1(1.0F), exp(exponent)));
  }

  /// Sine and cosine within 2e-7 for 0 <= x <= 2^18. The first step of the reduction is exact: x
  /// and n * fl(pi/2) are multiples of 2^-24 less than 1 apart. Polynomials: Cephes sinf, cosf.
  static void sin_cos(F32 x, F32& sine, F32& cosine) {
    const F32 zero = L::set1(0.0F);
    const F32 n = L::round(L::mul(x, L::set1(0.636619772367581343F)));
    F32 r = L::fnma(n, L::set1(1.57079637050628662F), x);
    r = L::fnma(n, L::set1(-4.37113900018624283e-8F), r);
    const F32 z = L::mul(r, r);
    F32 s = L::set1(-1.9515295891e-4F);
    s = L::fma(s, z, L::set1(8.3321608736e-3F));
    s = L::fma(s, z, L::set1(-1.6666654611e-1F));
    s = L::fma(L::mul(s, z), r, r);
    F32 c = L::set1(2.443315711809948e-5F);
    c = L::fma(c, z, L::set1(-1.388731625493765e-3F));
    c = L::fma(c, z, L::set1(4.166664568298827e-2F));
    c = L::fma(c, z, L::set1(-0.5F));
    c = L::fma(c, z, L::set1(1.0F));
    // n mod 4 in {-2, -1, 0, 1, 2}: +-1 swap sine and cosine, the signs follow the quadrant.
    const F32 quadrant = L::fnma(L::set1(4.0F), L::round(L::mul(n, L::set1(0.25F))), n);
    const F32 square = L::mul(quadrant, quadrant);  // 0, 1 or 4
    const F32 half = L::set1(0.5F);
    const F32 three = L::set1(3.0F);
    const F32 minus_s = L::sub(zero, s);
    const F32 minus_c = L::sub(zero, c);
    const F32 odd_sine = L::select_less(quadrant, zero, minus_c, c);
    const F32 odd_cosine = L::select_less(quadrant, zero, s, minus_s);
    sine = L::select_less(square, half, s, L::select_less(square, three, odd_sine, minus_s));
    cosine = L::select_less(square, half, c, L::select_less(square, three, odd_cosine, minus_c));
  }
};

}  // namespace tandem::kernels::cpu
