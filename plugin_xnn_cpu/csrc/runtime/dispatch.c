/* From the call of a step to the function that runs it; see kernels.def. */
#include "runtime/dispatch.h"

#include "runtime/kernel.h"

static int run_operator(const np_step *step, int status, np_workers *workers) {
  if (status != 0) return status;
  return (int)xnn_run_operator(step->op, step->alone ? NULL : np_workers_pool(workers));
}

int np_run_step(const np_step *step, void *const *buffers, void *workspace, np_workers *workers) {
  const void *inputs[NP_MAX_INPUTS];
  for (size_t i = 0; i < NP_MAX_INPUTS; i++) {
    inputs[i] = step->inputs[i] < 0 ? NULL : buffers[step->inputs[i]];
  }
  const void *a = inputs[0], *b = inputs[1];
  const xnn_operator_t op = step->op;
  void *out = buffers[step->output];
  np_job job = {step->params, inputs, out, workspace, workers, 0};
  switch (step->call) {
#define NP_OPERATOR(call, setup, summary)  \
  case NP_##call:                          \
    if (op == NULL) return NP_STATUS_CALL; \
    return run_operator(step, step->set_up ? 0 : (int)(setup), workers);
#define NP_CONVERTED(call, function, type, file, summary) \
  case NP_##call: return op == NULL ? NP_STATUS_CALL : function(&job, op);
#define NP_KERNEL(call, function, type, file, summary) \
  case NP_##call: return function(&job);
#include "kernels.def"
    default: return NP_STATUS_CALL;
  }
}

const np_call_row np_call_rows[] = {
#define NP_OPERATOR(call, setup, summary) {"NP_" #call, "", "", summary},
#define NP_CONVERTED(call, function, type, file, summary) {"NP_" #call, #type, file, summary},
#define NP_KERNEL(call, function, type, file, summary) {"NP_" #call, #type, file, summary},
#include "kernels.def"
};

const size_t np_call_count = sizeof np_call_rows / sizeof np_call_rows[0];
