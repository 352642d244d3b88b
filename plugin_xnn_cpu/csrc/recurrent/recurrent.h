/* LSTM, GRU and RNN: the recurrence, step by step. Read by cffi too: no directives but simple
 * constants. */
#pragma once

#include "runtime/isa.h"

/* Changes whenever packed bytes are laid out otherwise. */
#define NP_RECURRENT_LAYOUT 2

#define NP_RECURRENT_LSTM 0
#define NP_RECURRENT_GRU 1       /* the state is reset before it is multiplied */
#define NP_RECURRENT_GRU_AFTER 2 /* the matmul with its bias is reset */
#define NP_RECURRENT_RNN 3

/* Activations, with alpha and beta where they have them. */
#define NP_ACTIVATION_SIGMOID 0
#define NP_ACTIVATION_TANH 1
#define NP_ACTIVATION_RELU 2
#define NP_ACTIVATION_AFFINE 3
#define NP_ACTIVATION_LEAKY_RELU 4
#define NP_ACTIVATION_THRESHOLDED_RELU 5
#define NP_ACTIVATION_SCALED_TANH 6
#define NP_ACTIVATION_HARD_SIGMOID 7
#define NP_ACTIVATION_ELU 8
#define NP_ACTIVATION_SOFTSIGN 9
#define NP_ACTIVATION_SOFTPLUS 10

struct np_recurrent_function {
  int32_t kind; /* NP_ACTIVATION_* */
  float alpha;
  float beta;
};

/* The recurrence of `directions` directions over `steps` rows of `batch` sequences. Input 0 has the
 * inputs' part of the gates with their biases: [steps, batch, directions, gates, hidden], the gates
 * in ONNX's order. Others are at the places below, which are 0 where they are left out: initial
 * states [directions, batch, hidden] or [batch, directions, hidden] by `state_strides`, and int32
 * lengths [batch]. The output has Y by `y_strides`, then the last states from `hidden_offset` and
 * `cell_offset` on by `state_strides`. All strides and offsets are in floats.
 *
 * `clip` bounds what activations f and g take. Rows behind a sequence's end leave its states as
 * they are, and are zeros in Y. A sequence of length 0 has last states of 0. */
struct np_recurrent_params {
  const void *packed; /* np_recurrent_pack wrote it for `lanes` */
  size_t steps;
  size_t batch;
  size_t hidden;
  size_t directions;
  size_t lanes;
  int32_t kind;      /* NP_RECURRENT_* */
  int32_t backwards; /* the first direction, if it is the only one, begins with the last row */
  int32_t coupled;   /* the forget gate of an LSTM is 1 - the input gate */
  int32_t peepholes;
  struct np_recurrent_function functions[6]; /* f, g, h of each direction */
  float clip;                                /* infinity for none */
  int32_t hidden_input;
  int32_t cell_input;
  int32_t lengths_input;
  int32_t has_y;
  int32_t has_hidden;
  int32_t has_cell;
  size_t y_strides[3];     /* of steps, directions, sequences */
  size_t state_strides[2]; /* of directions, sequences */
  size_t hidden_offset;
  size_t cell_offset;
  size_t parts; /* of the units of a direction, computed by threads in each step; 0 where a
                   thread computes a direction from end to end */
  int32_t target; /* NP_TARGET_* */
  int32_t quantized; /* np_recurrent_pack_bytes wrote `packed`: states are quantized in each step,
                        from -max to max in 254 steps; where one is not finite, all that follows is
                        NaN */
  const int32_t *zeros; /* zero points of quantized weights, [directions][gates][units in whole
                           vectors]; NULL where all are 0 */
};

/* Bytes of packed weights of int8. */
size_t np_recurrent_packed_bytes(size_t directions, int32_t kind, size_t hidden, size_t extras,
                                 size_t lanes);

/* weights[directions][gates · hidden][hidden], scales[directions][gates · hidden], extra as
 * below. */
void np_recurrent_pack_bytes(size_t directions, int32_t kind, size_t hidden, size_t extras,
                             size_t lanes, const int8_t *weights, const float *scales,
                             const float *extra, void *packed);

/* The lanes for which weights are packed, on this processor. */
size_t np_recurrent_lanes(int32_t target);

/* Floats of packed weights. `extras` are vectors of [hidden] behind the matrices of a direction. */
size_t np_recurrent_packed_floats(size_t directions, int32_t kind, size_t hidden, size_t extras,
                                  size_t lanes);

/* weights[directions][gates · hidden][hidden], extra[directions][extras][hidden] or NULL. */
void np_recurrent_pack(size_t directions, int32_t kind, size_t hidden, size_t extras, size_t lanes,
                       const float *weights, const float *extra, void *packed);

/* Floats of the workspace; `copies` of the quantized states are 0 without such. */
size_t np_recurrent_scratch_floats(size_t directions, size_t batch, size_t hidden, size_t lanes,
                                   size_t copies);
