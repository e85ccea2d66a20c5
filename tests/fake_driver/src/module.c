/* Modules and kernels. Nothing is executed: a launch is work of `kernel_ns` on its stream. */
#include "fake.h"
#include "fake_objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult load(Handle *handle, const char *image) {
    LOCKED;
    if (!image) return INVALID_VALUE;
    Module *module = object_new(MODULE);
    if (!module) return OUT_OF_MEMORY;
    bool text = !strncmp(image, "//", 2) || !strncmp(image, ".version", 8) || image[0] == '\n';
    module->ptx = text ? strdup(image) : NULL;
    *handle = module->header.handle;
    return SUCCESS;
}

static CUresult unload(Handle handle) {
    LOCKED;
    Module *module = object_find(MODULE, handle);
    if (!module) return INVALID_HANDLE;
    free(module->ptx);
    object_free(MODULE, module);
    return SUCCESS;
}

static CUresult find_kernel(Handle *handle, Handle module_handle, const char *name) {
    LOCKED;
    Module *module = object_find(MODULE, module_handle);
    if (!module) return INVALID_HANDLE;
    if (module->ptx && !strstr(module->ptx, name)) return NOT_FOUND;
    Kernel *kernel = object_new(FUNCTION);
    if (!kernel) return OUT_OF_MEMORY;
    kernel->module = module_handle;
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    *handle = kernel->header.handle;
    return SUCCESS;
}

EXPORT CUresult cuModuleLoadData(Handle *module, const void *image) {
    ENTER(cuModuleLoadData);
    return load(module, image);
}

EXPORT CUresult cuModuleLoadDataEx(Handle *module, const void *image, unsigned count, int *options, void **values) {
    ENTER(cuModuleLoadDataEx);
    (void)count, (void)options, (void)values;
    return load(module, image);
}

EXPORT CUresult cuModuleUnload(Handle module) {
    ENTER(cuModuleUnload);
    return unload(module);
}

EXPORT CUresult cuModuleGetFunction(Handle *kernel, Handle module, const char *name) {
    ENTER(cuModuleGetFunction);
    return find_kernel(kernel, module, name);
}

EXPORT CUresult cuLibraryLoadData(Handle *library, const void *image, int *jit_options, void **jit_values,
    unsigned jit_count, int *options, void **values, unsigned count) {
    ENTER(cuLibraryLoadData);
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, image);
}

EXPORT CUresult cuLibraryUnload(Handle library) {
    ENTER(cuLibraryUnload);
    return unload(library);
}

EXPORT CUresult cuLibraryGetKernel(Handle *kernel, Handle library, const char *name) {
    ENTER(cuLibraryGetKernel);
    return find_kernel(kernel, library, name);
}

EXPORT CUresult cuLibraryGetModule(Handle *module, Handle library) {
    ENTER(cuLibraryGetModule);
    *module = library;
    return object_find(MODULE, library) ? SUCCESS : INVALID_HANDLE;
}

EXPORT CUresult cuKernelGetFunction(Handle *function, Handle kernel) {
    ENTER(cuKernelGetFunction);
    *function = kernel;
    return object_find(FUNCTION, kernel) ? SUCCESS : INVALID_HANDLE;
}

static CUresult name_of(const char **name, Handle handle) {
    Kernel *kernel = object_find(FUNCTION, handle);
    *name = kernel ? kernel->name : NULL;
    return kernel ? SUCCESS : INVALID_HANDLE;
}

EXPORT CUresult cuFuncGetName(const char **name, Handle function) {
    ENTER(cuFuncGetName);
    return name_of(name, function);
}

EXPORT CUresult cuKernelGetName(const char **name, Handle kernel) {
    ENTER(cuKernelGetName);
    return name_of(name, kernel);
}

static CUresult attribute_of(int *value, int attribute, Handle handle) {
    enum { MAX_THREADS_PER_BLOCK = 0 };
    *value = attribute == MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return object_find(FUNCTION, handle) ? SUCCESS : INVALID_HANDLE;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, Handle function) {
    ENTER(cuFuncGetAttribute);
    return attribute_of(value, attribute, function);
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, Handle kernel, CUdevice device) {
    ENTER(cuKernelGetAttribute);
    (void)device;
    return attribute_of(value, attribute, kernel);
}

EXPORT CUresult cuFuncSetAttribute(Handle function, int attribute, int value) {
    ENTER(cuFuncSetAttribute);
    (void)attribute, (void)value;
    return object_find(FUNCTION, function) ? SUCCESS : INVALID_HANDLE;
}

static CUresult launch(Handle function, Handle stream) {
    return object_find(FUNCTION, function) ? submit(stream, (int64_t)settings.kernel_ns) : INVALID_HANDLE;
}

EXPORT CUresult cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, Handle stream, void **params, void **extra) {
    ENTER(cuLaunchKernel);
    (void)shared, (void)params, (void)extra;
    return gx && gy && gz && bx && by && bz ? launch(function, stream) : INVALID_VALUE;
}

typedef struct { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    Handle stream;
    void *attributes;
    unsigned count;
} LaunchConfig;

EXPORT CUresult cuLaunchKernelEx(const LaunchConfig *config, Handle function, void **params, void **extra) {
    ENTER(cuLaunchKernelEx);
    (void)params, (void)extra;
    return launch(function, config->stream);
}
