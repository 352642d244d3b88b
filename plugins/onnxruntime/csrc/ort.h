/* The table of onnxruntime's functions that are called. */
#pragma once

#include "abi.h"

typedef struct {
#define ORT(place, result, name, arguments) result(*name) arguments;
#include "ort.def"
#undef ORT
  const OrtEpApi *ep;
} np_ort;

/* Fill `ort` from onnxruntime's tables; return NULL, or why they cannot be used. */
const char *np_ort_load(np_ort *ort, const OrtApiBase *base);
