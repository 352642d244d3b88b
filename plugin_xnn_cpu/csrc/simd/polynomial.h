/* Horner's scheme: the polynomial of x with `count` coefficients, that of power 0 first.
 *
 * NP_POLYNOMIAL is for numbers, and rounds each multiplication and each addition. NP_VECTOR_POLYNOMIAL
 * is for vectors of a template: its multiply_add rounds once. Either has the same bits with every
 * instruction set. */
#pragma once

#define NP_POLYNOMIAL(count, x, ...) NP_HORNER##count(NP_HORNER_STEP, x, __VA_ARGS__)
#define NP_VECTOR_POLYNOMIAL(count, x, ...) NP_HORNER##count(NP_VECTOR_STEP, x, __VA_ARGS__)

/* c + x · y; the last coefficient is a number, which - (vec){0} spreads to all lanes. */
#define NP_HORNER_STEP(x, y, c) ((c) + (x) * (y))
#define NP_VECTOR_STEP(x, y, c) multiply_add(x, (y) - (vec){0}, broadcast(c))

#define NP_HORNER2(STEP, x, c, d) STEP(x, d, c)
#define NP_HORNER3(STEP, x, c, ...) STEP(x, NP_HORNER2(STEP, x, __VA_ARGS__), c)
#define NP_HORNER4(STEP, x, c, ...) STEP(x, NP_HORNER3(STEP, x, __VA_ARGS__), c)
#define NP_HORNER5(STEP, x, c, ...) STEP(x, NP_HORNER4(STEP, x, __VA_ARGS__), c)
#define NP_HORNER6(STEP, x, c, ...) STEP(x, NP_HORNER5(STEP, x, __VA_ARGS__), c)
#define NP_HORNER7(STEP, x, c, ...) STEP(x, NP_HORNER6(STEP, x, __VA_ARGS__), c)
#define NP_HORNER8(STEP, x, c, ...) STEP(x, NP_HORNER7(STEP, x, __VA_ARGS__), c)
#define NP_HORNER9(STEP, x, c, ...) STEP(x, NP_HORNER8(STEP, x, __VA_ARGS__), c)
