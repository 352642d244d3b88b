/* LSTM, GRU and RNN: packing, and who computes what; recurrent/code.h has the steps. */
#include <string.h>

#include "recurrent/step.h"
#include "runtime/cancel.h"

static np_recurrent_code *best(const struct np_recurrent_params *p) {
  if (!p->quantized) return NP_FROM_SSE4(np_recurrent, p->target);
#if NP_HAS_AVX512VNNI
  if (np_isa_for(p->target) >= NP_TARGET_AVX512VNNI) return np_recurrent_int8_avx512vnni;
#endif
  return NP_FROM_SSE4(np_recurrent_int8, p->target);
}

size_t np_recurrent_lanes(int32_t target) {
  return np_isa_for(target) >= NP_TARGET_AVX512 ? 16 : 8;
}

static size_t padded(size_t hidden, size_t lanes) { return (hidden + lanes - 1) / lanes * lanes; }

size_t np_recurrent_packed_floats(size_t directions, int32_t kind, size_t hidden, size_t extras,
                                  size_t lanes) {
  return directions * padded(hidden, lanes) * (np_recurrent_gates(kind) * hidden + extras);
}

size_t np_recurrent_scratch_floats(size_t directions, size_t batch, size_t hidden, size_t lanes,
                                   size_t copies) {
  return 4 * directions * batch * padded(hidden, lanes) +
         directions * copies * np_recurrent_row_bytes(batch, hidden) / sizeof(float);
}

size_t np_recurrent_packed_bytes(size_t directions, int32_t kind, size_t hidden, size_t extras,
                                 size_t lanes) {
  const size_t gates = np_recurrent_gates(kind);
  return directions * padded(hidden, lanes) * (gates * ((hidden + 3) / 4 * 4 + 8) + 4 * extras);
}

/* Gates `from` to `from` + `count` - 1 of a direction, as panels of `lanes` units with `group`
 * inputs of a unit side by side; `element` is the bytes of a weight. Both are constants. */
NP_INLINE uint8_t *pack_gates(const uint8_t *weights, const size_t element, const size_t group,
                              size_t from, size_t count, size_t hidden, size_t lanes, uint8_t *to) {
  for (size_t unit = 0; unit < hidden; unit += lanes) {
    for (size_t k = 0; k < hidden; k += group) {
      for (size_t gate = from; gate < from + count; gate++) {
        for (size_t at = 0; at < lanes * group; at++, to += element) {
          const size_t row = unit + at / group, column = k + at % group;
          const uint8_t *weight = weights + ((gate * hidden + row) * hidden + column) * element;
          memset(to, 0, element);
          if (row < hidden && column < hidden) memcpy(to, weight, element);
        }
      }
    }
  }
  return to;
}

/* Behind the panels: scales, and what the offset of 128 adds to the accumulators, negated. */
static void pack_scales(const int8_t *weights, const float *scales, size_t gates, size_t hidden,
                        size_t whole, float *to) {
  int32_t *offsets = (int32_t *)(to + gates * whole);
  for (size_t gate = 0; gate < gates; gate++) {
    for (size_t unit = 0; unit < whole; unit++, to++, offsets++) {
      int32_t sum = 0;
      for (size_t k = 0; unit < hidden && k < hidden; k++) {
        sum += weights[(gate * hidden + unit) * hidden + k];
      }
      *to = unit < hidden ? scales[gate * hidden + unit] : 0;
      *offsets = -128 * sum;
    }
  }
}

/* All directions: gates, those of the second phase apart; scales of int8 weights; vectors. */
static void pack(size_t directions, int32_t kind, size_t hidden, size_t extras, size_t lanes,
                 const uint8_t *weights, const float *scales, const float *extra, uint8_t *to) {
  const size_t gates = np_recurrent_gates(kind), whole = padded(hidden, lanes);
  const size_t element = scales == NULL ? sizeof(float) : 1;
  const size_t first = kind == NP_RECURRENT_GRU ? 2 : gates;
  for (size_t d = 0; d < directions; d++) {
    const uint8_t *from = weights + d * gates * hidden * hidden * element;
    if (scales == NULL) {
      to = pack_gates(from, sizeof(float), 1, 0, first, hidden, lanes, to);
      to = pack_gates(from, sizeof(float), 1, first, gates - first, hidden, lanes, to);
    } else {
      to = pack_gates(from, 1, 4, 0, first, hidden, lanes, to);
      to = pack_gates(from, 1, 4, first, gates - first, hidden, lanes, to);
    }
    float *behind = (float *)(void *)to;
    if (scales != NULL) {
      pack_scales((const int8_t *)from, scales + d * gates * hidden, gates, hidden, whole,
                  behind);
      behind += 2 * gates * whole;
    }
    for (size_t e = 0; e < extras; e++) {
      for (size_t unit = 0; unit < whole; unit++, behind++) {
        *behind = unit < hidden ? extra[(d * extras + e) * hidden + unit] : 0;
      }
    }
    to = (uint8_t *)behind;
  }
}

void np_recurrent_pack(size_t directions, int32_t kind, size_t hidden, size_t extras, size_t lanes,
                       const float *weights, const float *extra, void *packed) {
  pack(directions, kind, hidden, extras, lanes, (const uint8_t *)weights, NULL, extra, packed);
}

void np_recurrent_pack_bytes(size_t directions, int32_t kind, size_t hidden, size_t extras,
                             size_t lanes, const int8_t *weights, const float *scales,
                             const float *extra, void *packed) {
  pack(directions, kind, hidden, extras, lanes, (const uint8_t *)weights, scales, extra, packed);
}

static size_t blocks(const np_recurrent_job *job) { return job->padded / job->params->lanes; }

/* A direction from end to end. */
static void direction(void *context, size_t thread, size_t index) {
  const np_recurrent_job *job = context;
  const struct np_recurrent_params *p = job->params;
  np_recurrent_code *code = best(p);
  for (size_t step = 0; step < p->steps; step++) {
    code(job, index, step, 0, blocks(job), 0, 0);
    if (p->kind == NP_RECURRENT_GRU) code(job, index, step, 0, blocks(job), 0, 1);
    if (np_cancel_check()) return;
  }
}

typedef struct {
  const np_recurrent_job *job;
  int phase;
} step_task;

/* Some units of a direction, in one step. */
static void part(void *context, size_t thread, size_t index) {
  const step_task *task = context;
  const struct np_recurrent_params *p = task->job->params;
  const size_t all = blocks(task->job), number = index % p->parts;
  best(p)(task->job, index / p->parts, task->job->step, all * number / p->parts,
                  all * (number + 1) / p->parts, number, task->phase);
}

/* Copy states between the arrays of the model and ours, which have whole vectors. */
static void states_in(const np_recurrent_job *job, const float *from, float *to) {
  const struct np_recurrent_params *p = job->params;
  memset(to, 0, p->directions * p->batch * job->padded * sizeof *to);
  if (from == NULL) return;
  for (size_t d = 0; d < p->directions; d++) {
    for (size_t b = 0; b < p->batch; b++) {
      memcpy(to + (d * p->batch + b) * job->padded,
             from + d * p->state_strides[0] + b * p->state_strides[1], p->hidden * sizeof *to);
    }
  }
}

static void states_out(const np_recurrent_job *job, const float *from, float *to) {
  const struct np_recurrent_params *p = job->params;
  for (size_t d = 0; d < p->directions; d++) {
    for (size_t b = 0; b < p->batch; b++) {
      float *row = to + d * p->state_strides[0] + b * p->state_strides[1];
      if (p->steps == 0 || (job->lengths != NULL && job->lengths[b] == 0)) {
        memset(row, 0, p->hidden * sizeof *row);
      } else {
        memcpy(row, from + (d * p->batch + b) * job->padded, p->hidden * sizeof *row);
      }
    }
  }
}

int np_recurrent(np_job *job) {
  const struct np_recurrent_params *p = job->params;
  const size_t size = p->directions * p->batch * padded(p->hidden, p->lanes);
  float *scratch = (float *)(void *)job->scratch;
  np_recurrent_job state = {
      .params = p,
      .gates = job->inputs[0],
      .out = job->out,
      .hidden = {scratch, scratch + size},
      .cell = scratch + 2 * size,
      .reset = scratch + 3 * size,
      .padded = padded(p->hidden, p->lanes),
      .rows = (uint8_t *)(scratch + 4 * size),
  };
  if (p->lengths_input != 0) {
    const int32_t *lengths = job->inputs[p->lengths_input];
    for (size_t b = 0; b < p->batch; b++) {
      if (lengths[b] < 0 || (size_t)lengths[b] > p->steps) return NP_STATUS_INDEX;
    }
    state.lengths = lengths;
  }
  states_in(&state, p->hidden_input == 0 ? NULL : job->inputs[p->hidden_input], state.hidden[0]);
  states_in(&state, p->cell_input == 0 ? NULL : job->inputs[p->cell_input], state.cell);
  if (p->parts == 0) {
    np_parallel_for(job->workers, direction, &state, p->directions, 0);
  } else {
    for (state.step = 0; state.step < p->steps; state.step++) {
      step_task task = {&state, 0};
      np_parallel_for(job->workers, part, &task, p->directions * p->parts, 0);
      if (p->kind == NP_RECURRENT_GRU) {
        task.phase = 1;
        np_parallel_for(job->workers, part, &task, p->directions * p->parts, 0);
      }
    }
  }
  if (p->has_hidden)
    states_out(&state, state.hidden[p->steps & 1], (float *)job->out + p->hidden_offset);
  if (p->has_cell) states_out(&state, state.cell, (float *)job->out + p->cell_offset);
  return 0;
}
