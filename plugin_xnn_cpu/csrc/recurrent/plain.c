/* A step of a recurrence with vectors that any compiler makes of what there is. */
#define LANES 8
#define ROWS 2
#define CODE np_recurrent_plain
#define TARGET
#include "recurrent/code.h"
