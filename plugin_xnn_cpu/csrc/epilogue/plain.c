/* Epilogues with registers of four floats, which any CPU has. */
#define LANES 4
#define EPILOGUE np_epilogue_tile_plain
#define TARGET
#include "epilogue/code.h"
