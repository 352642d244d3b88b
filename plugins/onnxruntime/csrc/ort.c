#include "ort.h"

#include <stdio.h>
#include <string.h>

#define OLDEST_MINOR 30 /* of version 1 of onnxruntime: the oldest one that is tested */

static const struct {
  size_t field, place;
} PLACES[] = {
#define ORT(place, result, name, arguments) {offsetof(np_ort, name), place},
#include "ort.def"
#undef ORT
};

const char *np_ort_load(np_ort *ort, const OrtApiBase *base) {
  int major = 0, minor = 0;
  const char *version = base->GetVersionString();
  if (version == NULL || sscanf(version, "%d.%d", &major, &minor) != 2)
    return "onnxruntime does not say its version";
  if (major != 1 || minor < OLDEST_MINOR)
    return "this version of onnxruntime is not supported: 1.30 is the oldest, and version 2 is "
           "not known";
  const void *table = base->GetApi(NP_API_VERSION);
  if (table == NULL) return "onnxruntime does not offer the interface of execution providers";
  for (size_t i = 0; i < sizeof PLACES / sizeof PLACES[0]; i++)
    memcpy((char *)ort + PLACES[i].field, (const char *)table + PLACES[i].place * sizeof(void *),
           sizeof(void *));
  ort->ep = ort->GetEpApi();
  return ort->ep == NULL ? "onnxruntime does not offer the interface of execution providers" : NULL;
}
