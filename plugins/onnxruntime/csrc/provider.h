/* The execution provider: a factory, and one provider for each session. */
#pragma once

#include "kernel.h"
#include "ort.h"

/* A provider of a session. Python finds what it needs by `handle`. */
typedef struct {
  OrtEp base;
  void *handle;
} np_ep;

/* onnxruntime's functions, or NULL before it has loaded this library. */
const np_ort *np_ort_loaded(void);

/* Whether Python may be called; false from the interpreter's exit on. */
bool np_is_alive(void);
void np_set_alive(bool alive);

OrtStatus *np_error(const char *message);

/* In Python. The results are onnxruntime's statuses: NULL where nothing failed. */
OrtStatus *np_create_ep(np_ep *ep, const OrtSessionOptions *options, const OrtLogger *logger);
OrtStatus *np_get_capability(np_ep *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info);
OrtStatus *np_compile(np_ep *ep, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                      OrtNodeComputeInfo **infos);
OrtStatus *np_compute_in_python(np_kernel *kernel, OrtKernelContext *context);
void np_forget(void *handle);
