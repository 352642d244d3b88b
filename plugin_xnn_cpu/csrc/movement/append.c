/* Rows appended in place to those that a buffer has so far. */
#include "movement/copy.h"
#include "runtime/kernel.h"

/* The second operand is copied behind the rows that the output has, whose number is the third
 * operand, an int64. The first operand is the output. */
struct np_append_params {
  struct np_copy_params rows; /* of the second operand, to the first row */
  size_t new_rows;
  size_t capacity;  /* in rows */
  size_t row_bytes; /* from a row of the output to the next one */
};

int np_append(np_job *job) {
  const struct np_append_params *p = job->params;
  /* It may lie where others write meanwhile: it is read once, and what was read checked. */
  const int64_t length = *(const volatile int64_t *)job->inputs[2];
  if (length < 0 || p->new_rows > p->capacity) return NP_STATUS_INDEX;
  if (length > (int64_t)(p->capacity - p->new_rows)) return NP_STATUS_INDEX;
  char *const end = (char *)job->out + (size_t)length * p->row_bytes;
  np_job copy = {&p->rows, &job->inputs[1], end, NULL, job->workers, 0};
  return np_copy(&copy);
}
