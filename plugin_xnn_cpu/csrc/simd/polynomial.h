/* Horner's scheme: the polynomial of x with so many coefficients, that of power 0 first.
 *
 * NP_POLYNOMIAL is for numbers, and rounds each multiplication and each addition. NP_VECTOR_POLYNOMIAL
 * is for vectors of a template: its multiply_add rounds once. Either has the same bits with every
 * instruction set. */
#pragma once

#define NP_POLYNOMIAL2(x, c, d) ((c) + (x) * (d))
#define NP_POLYNOMIAL3(x, c, ...) ((c) + (x) * NP_POLYNOMIAL2(x, __VA_ARGS__))
#define NP_POLYNOMIAL4(x, c, ...) ((c) + (x) * NP_POLYNOMIAL3(x, __VA_ARGS__))
#define NP_POLYNOMIAL5(x, c, ...) ((c) + (x) * NP_POLYNOMIAL4(x, __VA_ARGS__))
#define NP_POLYNOMIAL6(x, c, ...) ((c) + (x) * NP_POLYNOMIAL5(x, __VA_ARGS__))
#define NP_POLYNOMIAL7(x, c, ...) ((c) + (x) * NP_POLYNOMIAL6(x, __VA_ARGS__))
#define NP_POLYNOMIAL8(x, c, ...) ((c) + (x) * NP_POLYNOMIAL7(x, __VA_ARGS__))
#define NP_POLYNOMIAL9(x, c, ...) ((c) + (x) * NP_POLYNOMIAL8(x, __VA_ARGS__))

#define NP_VECTOR_POLYNOMIAL2(x, c, d) multiply_add(x, broadcast(d), broadcast(c))
#define NP_VECTOR_POLYNOMIAL3(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL2(x, __VA_ARGS__), broadcast(c))
#define NP_VECTOR_POLYNOMIAL4(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL3(x, __VA_ARGS__), broadcast(c))
#define NP_VECTOR_POLYNOMIAL5(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL4(x, __VA_ARGS__), broadcast(c))
#define NP_VECTOR_POLYNOMIAL6(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL5(x, __VA_ARGS__), broadcast(c))
#define NP_VECTOR_POLYNOMIAL7(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL6(x, __VA_ARGS__), broadcast(c))
#define NP_VECTOR_POLYNOMIAL8(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL7(x, __VA_ARGS__), broadcast(c))
#define NP_VECTOR_POLYNOMIAL9(x, c, ...) \
  multiply_add(x, NP_VECTOR_POLYNOMIAL8(x, __VA_ARGS__), broadcast(c))
