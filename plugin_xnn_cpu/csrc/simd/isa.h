/* Names of what a template defines for the instruction set that it is compiled for: the build
 * defines NP_ISA, and LANES, the floats of a register (build_tools/instruction_sets.py). */
#pragma once

#define NP_JOIN_NAMES(name, isa) name##_##isa
#define NP_EXPAND_NAMES(name, isa) NP_JOIN_NAMES(name, isa)
#define NP_OF_ISA(name) NP_EXPAND_NAMES(name, NP_ISA)
