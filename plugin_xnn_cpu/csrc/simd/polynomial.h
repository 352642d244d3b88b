/* Horner's scheme: the polynomial of x with so many coefficients, that of power 0 first. */
#pragma once

#define NP_POLYNOMIAL2(x, c, d) ((c) + (x) * (d))
#define NP_POLYNOMIAL3(x, c, ...) ((c) + (x) * NP_POLYNOMIAL2(x, __VA_ARGS__))
#define NP_POLYNOMIAL4(x, c, ...) ((c) + (x) * NP_POLYNOMIAL3(x, __VA_ARGS__))
#define NP_POLYNOMIAL5(x, c, ...) ((c) + (x) * NP_POLYNOMIAL4(x, __VA_ARGS__))
#define NP_POLYNOMIAL6(x, c, ...) ((c) + (x) * NP_POLYNOMIAL5(x, __VA_ARGS__))
#define NP_POLYNOMIAL7(x, c, ...) ((c) + (x) * NP_POLYNOMIAL6(x, __VA_ARGS__))
#define NP_POLYNOMIAL8(x, c, ...) ((c) + (x) * NP_POLYNOMIAL7(x, __VA_ARGS__))
#define NP_POLYNOMIAL9(x, c, ...) ((c) + (x) * NP_POLYNOMIAL8(x, __VA_ARGS__))
