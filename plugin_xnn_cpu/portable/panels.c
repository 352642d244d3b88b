/* Packing of constant matrices; fingerprints of the layouts. */
#include "panels.h"

#include <string.h>

/* Changes with the layout, so that files with blocks of another one are not read. */
#define VERSION 1

static const struct xnn_fingerprint fingerprints[] = {
    {0x4e500001u, VERSION}, {0x4e500002u, VERSION}, {0x4e500003u, VERSION}, {0x4e500004u, VERSION},
    {0x4e500005u, VERSION}, {0x4e500006u, VERSION}, {0x4e500007u, VERSION},
};
#define FINGERPRINTS (sizeof fingerprints / sizeof *fingerprints)

const struct xnn_fingerprint *xnn_get_fingerprint(uint32_t id) {
  for (size_t i = 0; i < FINGERPRINTS; i++) {
    if (fingerprints[i].id == id) return &fingerprints[i];
  }
  return NULL;
}

enum xnn_status xnn_check_fingerprint(struct xnn_fingerprint fingerprint) {
  const struct xnn_fingerprint *known = xnn_get_fingerprint(fingerprint.id);
  return known != NULL && known->value == fingerprint.value ? xnn_status_success
                                                            : xnn_status_unsupported_parameter;
}

size_t np_portable_width(bool is_float) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return is_float ? 64 : 32;
#endif
  return 16;
}

static void pack_group(const np_panel_layout *layout, const np_constants *from, uint8_t *to) {
  const size_t element = layout->element;
  const size_t width = layout->width;
  for (size_t start = 0; start < layout->outputs; start += width) {
    const size_t left = layout->outputs - start, columns = left < width ? left : width;
    if (from->bias != NULL) memcpy(to, (const uint8_t *)from->bias + 4 * start, 4 * columns);
    to += 4 * width;
    for (size_t k = 0; k < layout->depth; k++, to += element * width) {
      for (size_t n = 0; n < columns; n++) {
        const size_t at = (start + n) * from->output_stride + k * from->depth_stride;
        memcpy(to + element * n, (const uint8_t *)from->weights + element * at, element);
      }
    }
    if (!layout->has_scales) continue;
    for (size_t n = 0; n < columns; n++) {
      ((float *)(void *)to)[n] = from->scales[start + n] * from->scale;
    }
    to += 4 * width;
  }
}

enum xnn_status np_portable_pack(xnn_operator_t op, const np_panel_layout *layout, size_t groups,
                                 const np_constants *constants, uint32_t fingerprint,
                                 const void *kernel, const void *bias, xnn_weights_cache_t cache,
                                 const uint8_t **packed) {
  const size_t group = np_panel_count(layout) * np_panel_bytes(layout), size = groups * group;
  const struct xnn_weights_cache_look_up_key key = {VERSION, kernel, bias, fingerprint};
  void *context = cache == NULL ? NULL : cache->context;
  if (cache != NULL) {
    const size_t found = cache->look_up(context, &key);
    if (found != SIZE_MAX) {
      *packed = cache->offset_to_addr(context, found);
      return xnn_status_success;
    }
  }
  uint8_t *space = cache == NULL ? malloc(size) : cache->reserve_space(context, size);
  if (space == NULL) return xnn_status_out_of_memory;
  memset(space, 0, size);
  for (size_t g = 0; g < groups; g++) pack_group(layout, &constants[g], space + g * group);
  if (cache == NULL) {
    op->owned = space;
    *packed = space;
    return xnn_status_success;
  }
  const size_t offset = cache->look_up_or_insert(context, &key, space, size);
  if (offset == SIZE_MAX) return xnn_status_out_of_memory;
  *packed = cache->offset_to_addr(context, offset);
  return xnn_status_success;
}
