/* What the int8 kernels multiply: pixels as int16, with their zero taken away, or stored with an
 * offset of +128; and the micro-kernels that do. */
#include "gemm/int8/panel.h"

static void copy_bytes(const void *in, size_t count, int32_t zero, void *out) {
  memcpy(out, in, count);
}

np_padded_image np_int8_padded_image(const np_int8_micro_kernels *code, const int8_t *pixels,
                                     const struct np_convolution_geometry *geometry, int32_t zero,
                                     int u8) {
  return (np_padded_image){
      .pixels = pixels,
      .in_element = sizeof(int8_t),
      .geometry = geometry,
      .element = code->element,
      .convert = u8 ? copy_bytes : code->upcast,
      .zero = zero,
      .padding = code->group == 4 ? zero + 128 : 0,
  };
}

const np_int8_micro_kernels *np_int8_micro_kernels_for(int32_t target, int32_t vnni) {
#if NP_HAS_AVX512AMX
  if (vnni && np_isa_for(target) >= NP_TARGET_AVX512AMX) return &np_int8_avx512amx;
#endif
#if NP_HAS_AVX512VNNI
  if (vnni) return &np_int8_vnni_avx512;
#endif
#if NP_HAS_AVX2
  if (np_isa_for(target) >= NP_TARGET_AVX2) return &np_int8_avx2;
#endif
  (void)target, (void)vnni;
  return &np_int8_plain;
}
