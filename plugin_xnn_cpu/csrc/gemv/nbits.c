/* GEMM with a matrix of 4 or 8 bits; gemv/nbits_code.c has what is done with a panel. */
#include <string.h>

#include "gemv/nbits_panel.h"

/* Multiplications below which waking the workers costs more than it saves. */
#define SMALL_WORK 2e5

size_t np_nbits_packed_size(size_t outputs, size_t inputs, size_t block, size_t bits) {
  const size_t panels = (outputs + NP_NBITS_COLUMNS - 1) / NP_NBITS_COLUMNS;
  return panels * np_nbits_panel_size(inputs, block, bits);
}

void np_nbits_pack(size_t outputs, size_t inputs, size_t block, size_t bits, const void *weights,
                   const void *numbers, const void *bias, void *packed) {
  const uint8_t *source = weights;
  const float *added = bias;
  const size_t blocks = np_nbits_blocks(inputs, block);
  const size_t width = blocks * block; /* of a row of the source */
  uint8_t *to = packed;
  for (size_t first = 0; first < outputs; first += NP_NBITS_COLUMNS) {
    float line[NP_NBITS_COLUMNS];
    for (size_t n = 0; n < NP_NBITS_COLUMNS; n++) {
      line[n] = added != NULL && first + n < outputs ? added[first + n] : 0.0f;
    }
    memcpy(to, line, sizeof line);
    to += sizeof line;
    for (size_t b = 0; b < blocks; b++) {
      for (int kind = 0; kind < 2; kind++) {
        const float *from = (const float *)numbers + (kind == 0 ? 0 : outputs * blocks);
        for (size_t n = 0; n < NP_NBITS_COLUMNS; n++) {
          line[n] = first + n < outputs ? from[(first + n) * blocks + b] : 0.0f;
        }
        memcpy(to, line, sizeof line);
        to += sizeof line;
      }
      const size_t together = 32 / bits;
      for (size_t k = b * block; k < (b + 1) * block; k += together) {
        for (size_t n = 0; n < NP_NBITS_COLUMNS; n++, to += sizeof(uint32_t)) {
          uint32_t word = 0;
          for (size_t i = 0; i < together && first + n < outputs; i++) {
            word |= (uint32_t)source[(first + n) * width + k + i] << (i * bits);
          }
          memcpy(to, &word, sizeof word);
        }
      }
    }
  }
}

static void part(void *context, size_t thread, size_t panel) {
  const np_nbits_job *job = context;
  const struct np_nbits_params *p = job->params;
  NP_FOR_ISA(np_nbits_panel, p->target)(job, panel, job->scratch + thread * p->thread_scratch);
}

int np_nbits(const void *params, const void *const *inputs, void *out, void *workspace,
             np_workers *workers) {
  const struct np_nbits_params *p = params;
  np_nbits_job job = {p, inputs[0], out, workspace};
  const size_t panels = (p->outputs + NP_NBITS_COLUMNS - 1) / NP_NBITS_COLUMNS;
  const double work = (double)p->rows * (double)p->inputs * (double)p->outputs;
  np_parallel_for(work < SMALL_WORK ? NULL : workers, part, &job, panels, NP_DISABLE_DENORMALS);
  return 0;
}
