#include "provider.h"

#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define NAME "NarrowpassExecutionProvider"
#define VENDOR "narrowpass"

static np_ort loaded;
static bool is_loaded;
static volatile bool alive;

const np_ort *np_ort_loaded(void) { return is_loaded ? &loaded : NULL; }

bool np_is_alive(void) { return alive; }

void np_set_alive(bool now) { alive = now; }

OrtStatus *np_error(const char *message) { return loaded.CreateStatus(NP_ORT_FAIL, message); }

static OrtStatus *not_alive(void) {
  return np_error(
      "the provider needs a Python that has imported narrowpass_onnxruntime and still runs");
}

static const char *ep_name(const OrtEp *ep) {
  (void)ep;
  return NAME;
}

static OrtStatus *get_capability(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
  return alive ? np_get_capability((np_ep *)ep, graph, info) : not_alive();
}

static OrtStatus *compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          OrtNodeComputeInfo **infos, OrtNode **contexts) {
  (void)contexts;
  return alive ? np_compile((np_ep *)ep, graphs, fused, count, infos) : not_alive();
}

static void release_infos(OrtEp *ep, OrtNodeComputeInfo **infos, size_t count) {
  (void)ep;
  for (size_t i = 0; i < count; i++) {
    if (infos[i] == NULL) continue;
    np_kernel *kernel = (np_kernel *)infos[i];
    void *handle = np_kernel_handle(kernel);
    np_kernel_free(kernel);
    if (alive) np_forget(handle);
  }
}

static const char *factory_name(const OrtEpFactory *factory) {
  (void)factory;
  return NAME;
}

static const char *factory_vendor(const OrtEpFactory *factory) {
  (void)factory;
  return VENDOR;
}

static const char *factory_version(const OrtEpFactory *factory) {
  (void)factory;
  return NP_VERSION; /* of the distribution */
}

static uint32_t factory_vendor_id(const OrtEpFactory *factory) {
  (void)factory;
  return 0; /* no vendor of hardware */
}

static OrtStatus *get_supported_devices(OrtEpFactory *factory,
                                        const OrtHardwareDevice *const *devices, size_t count,
                                        OrtEpDevice **found, size_t most, size_t *written) {
  *written = 0;
  for (size_t i = 0; i < count && *written < most; i++) {
    if (loaded.HardwareDevice_Type(devices[i]) != NP_ORT_DEVICE_CPU) continue;
    OrtStatus *status =
        loaded.ep->CreateEpDevice(factory, devices[i], NULL, NULL, &found[*written]);
    if (status != NULL) return status;
    (*written)++;
  }
  return NULL;
}

/* Tensors are in the memory of onnxruntime's own provider for CPUs. */
static OrtStatus *create_allocator(OrtEpFactory *factory, const OrtMemoryInfo *info,
                                   const OrtKeyValuePairs *options, OrtAllocator **allocator) {
  (void)factory;
  (void)info;
  (void)options;
  *allocator = NULL;
  return NULL;
}

static void release_allocator(OrtEpFactory *factory, OrtAllocator *allocator) {
  (void)factory;
  (void)allocator;
}

static OrtStatus *create_transfer(OrtEpFactory *factory, OrtDataTransferImpl **transfer) {
  (void)factory;
  *transfer = NULL;
  return NULL;
}

static bool is_stream_aware(const OrtEpFactory *factory) {
  (void)factory;
  return false;
}

static OrtStatus *create_ep(OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
                            const OrtKeyValuePairs *const *metadata, size_t count,
                            const OrtSessionOptions *options, const OrtLogger *logger,
                            OrtEp **ep) {
  (void)factory;
  (void)devices;
  (void)metadata;
  (void)count;
  *ep = NULL;
  if (!alive) return not_alive();
  np_ep *created = calloc(1, sizeof *created);
  if (created == NULL) return np_error("out of memory");
  created->base.version = NP_API_VERSION;
  created->base.GetName = ep_name;
  created->base.GetCapability = get_capability;
  created->base.Compile = compile;
  created->base.ReleaseNodeComputeInfos = release_infos;
  OrtStatus *status = np_create_ep(created, options, logger);
  if (status != NULL) {
    free(created);
    return status;
  }
  *ep = &created->base;
  return NULL;
}

static void release_ep(OrtEpFactory *factory, OrtEp *ep) {
  (void)factory;
  if (ep == NULL) return;
  void *handle = ((np_ep *)ep)->handle;
  free(ep);
  if (alive) np_forget(handle);
}

EXPORTED OrtStatus *CreateEpFactories(const char *registered, const OrtApiBase *base,
                                      const OrtLogger *logger, OrtEpFactory **factories,
                                      size_t most, size_t *count) {
  (void)registered;
  (void)logger;
  *count = 0;
  const char *refusal = np_ort_load(&loaded, base);
  if (refusal != NULL) {
    /* The first function of the table of any version. */
    const void *table = base->GetApi(1);
    memcpy(&loaded.CreateStatus, table, sizeof(void *));
    return np_error(refusal);
  }
  is_loaded = true;
  OrtEpFactory *factory = most == 0 ? NULL : calloc(1, sizeof *factory);
  if (factory == NULL) return np_error("there is no room for the provider");
  factory->version = NP_API_VERSION;
  factory->GetName = factory_name;
  factory->GetVendor = factory_vendor;
  factory->GetSupportedDevices = get_supported_devices;
  factory->CreateEp = create_ep;
  factory->ReleaseEp = release_ep;
  factory->GetVendorId = factory_vendor_id;
  factory->GetVersion = factory_version;
  factory->CreateAllocator = create_allocator;
  factory->ReleaseAllocator = release_allocator;
  factory->CreateDataTransfer = create_transfer;
  factory->IsStreamAware = is_stream_aware;
  factories[0] = factory;
  *count = 1;
  return NULL;
}

EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  free(factory);
  return NULL;
}
