/* What this library knows of onnxruntime's binary interface for execution providers.
 *
 * Facts of an interface that is append-only: places in tables of functions, the structs that a
 * provider fills, and values of enumerations. Nothing is linked: onnxruntime hands its tables to
 * `CreateEpFactories`. Read by cffi too: no directives but simple constants. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the interface that the structs below are of, and that is asked for. */
#define NP_API_VERSION 24

/* Values of enumerations. */
#define NP_ORT_FAIL 1
#define NP_ORT_INVALID_ARGUMENT 2
#define NP_ORT_DEVICE_CPU 0

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtLogger OrtLogger;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
typedef struct OrtApi OrtApi;

typedef struct {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct {
  uint32_t version;
  bool drop_constant_initializers;
} OrtNodeFusionOptions;

/* The first functions of the table for providers. */
typedef struct {
  OrtStatus *(*CreateEpDevice)(OrtEpFactory *factory, const OrtHardwareDevice *device,
                               const OrtKeyValuePairs *metadata, const OrtKeyValuePairs *options,
                               OrtEpDevice **found);
  void (*ReleaseEpDevice)(OrtEpDevice *device);
  OrtStatus *(*EpGraphSupportInfo_AddNodesToFuse)(OrtEpGraphSupportInfo *info,
                                                  const OrtNode *const *nodes, size_t count,
                                                  const OrtNodeFusionOptions *options);
} OrtEpApi;

/* What a provider fills. Functions that are NULL are not offered; `others` are those of this
 * version that never are. */
struct OrtNodeComputeInfo {
  uint32_t version;
  OrtStatus *(*CreateState)(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state);
  OrtStatus *(*Compute)(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context);
  void (*ReleaseState)(OrtNodeComputeInfo *info, void *state);
};

struct OrtEp {
  uint32_t version;
  const char *(*GetName)(const OrtEp *ep);
  OrtStatus *(*GetCapability)(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info);
  OrtStatus *(*Compile)(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                        OrtNodeComputeInfo **infos, OrtNode **contexts);
  void (*ReleaseNodeComputeInfos)(OrtEp *ep, OrtNodeComputeInfo **infos, size_t count);
  void *others[10];
};

struct OrtEpFactory {
  uint32_t version;
  const char *(*GetName)(const OrtEpFactory *factory);
  const char *(*GetVendor)(const OrtEpFactory *factory);
  OrtStatus *(*GetSupportedDevices)(OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
                                    size_t count, OrtEpDevice **found, size_t most, size_t *written);
  OrtStatus *(*CreateEp)(OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
                         const OrtKeyValuePairs *const *metadata, size_t count,
                         const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **ep);
  void (*ReleaseEp)(OrtEpFactory *factory, OrtEp *ep);
  uint32_t (*GetVendorId)(const OrtEpFactory *factory);
  const char *(*GetVersion)(const OrtEpFactory *factory);
  void *ValidateCompiledModelCompatibilityInfo;
  OrtStatus *(*CreateAllocator)(OrtEpFactory *factory, const OrtMemoryInfo *info,
                                const OrtKeyValuePairs *options, OrtAllocator **allocator);
  void (*ReleaseAllocator)(OrtEpFactory *factory, OrtAllocator *allocator);
  OrtStatus *(*CreateDataTransfer)(OrtEpFactory *factory, OrtDataTransferImpl **transfer);
  bool (*IsStreamAware)(const OrtEpFactory *factory);
  void *others[5];
};
