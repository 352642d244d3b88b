/* How often a core multiplies and adds where nothing is read from memory; see roofline.py. */
#include <stdint.h>

#define ALL(instruction, kind)                                                                    \
  "1:\n.irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" instruction " %%" kind "14,%%" kind "15,%%" kind "\\r\n" \
  ".endr\ndec %0\njnz 1b\n"

#define CLOBBERED                                                                                  \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
      "xmm14", "xmm15", "cc"

#define PEAK(name, instruction, kind, zero)                                                       \
  void name(uint64_t turns) {                                                                     \
    __asm__ volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,14,15\n" zero "\n.endr\n"                  \
                     ALL(instruction, kind)                                                       \
                     : "+r"(turns)                                                                \
                     :                                                                            \
                     : CLOBBERED);                                                                \
  }

PEAK(fma_256, "vfmadd231ps", "ymm", "vxorps %%ymm\\r,%%ymm\\r,%%ymm\\r")
PEAK(fma_512, "vfmadd231ps", "zmm", "vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r")
PEAK(bytes_512, "vpdpbusd", "zmm", "vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r")
PEAK(bf16_512, "vdpbf16ps", "zmm", "vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r")

/* The shapes of tiles that LDTILECFG reads: palette 1, 8 tiles of 16 rows of 64 bytes. */
static const struct {
  uint8_t palette[16];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} whole_tiles = {{1}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

/* Four accumulators, times two tiles of A and two of B; 12 instructions each turn, as above. */
#define TILES(name, instruction)                                                                  \
  void name(uint64_t turns) {                                                                     \
    __asm__ volatile("ldtilecfg %1\n1:\n.rept 3\n" instruction " %%tmm6,%%tmm4,%%tmm0\n"         \
                     instruction " %%tmm7,%%tmm4,%%tmm1\n" instruction " %%tmm6,%%tmm5,%%tmm2\n"  \
                     instruction " %%tmm7,%%tmm5,%%tmm3\n.endr\ndec %0\njnz 1b\ntilerelease\n"    \
                     : "+r"(turns)                                                                \
                     : "m"(whole_tiles)                                                           \
                     : "cc");                                                                     \
  }

TILES(tiles_int8, "tdpbusd")
TILES(tiles_bf16, "tdpbf16ps")
