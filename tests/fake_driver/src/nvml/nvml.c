/* A libnvidia-ml.so.1 whose readings are known: the nth of a kind, of a GPU, is 1000 * (GPU + 1) + n.
 *
 * As much of NVML as gputrace reads. GPUs are known by the uuids of the fake driver beside it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { MAX_DEVICES = 16 };
enum { UTILISATION, MEMORY, POWER, CLOCK, TEMPERATURE = CLOCK + 4, REASONS, PCIE, NVLINK = PCIE + 2, KINDS = NVLINK + 2 };

typedef int Result;
typedef struct gpu *Gpu;

struct gpu {
    unsigned counts[KINDS];
};

struct utilisation {
    unsigned gpu, memory;
};

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct temperature {
    unsigned version;
    int sensor, temperature;
};

struct field {
    unsigned id, scope;
    long long timestamp, latency_us;
    int type, result;
    unsigned long long value;
};

static struct gpu gpus[MAX_DEVICES];
static int users;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What a call answers before it does anything. */
static Result entered(const char *name) {
    const char *refused = getenv("FAKE_NVML_REFUSE");
    size_t length = strlen(name);
    for (const char *at = refused ? strstr(refused, name) : NULL; at; at = strstr(at + 1, name))
        if ((at == refused || at[-1] == ';') && (!at[length] || at[length] == ';')) return NOT_SUPPORTED;
    return users || !strcmp(name, "nvmlInit_v2") ? SUCCESS : UNINITIALIZED;
}

#define ENTER()                          \
    do {                                 \
        Result code = entered(__func__); \
        if (code) return code;           \
    } while (0)

static unsigned next(Gpu gpu, int kind) {
    pthread_mutex_lock(&lock);
    unsigned value = 1000 * (unsigned)(gpu - gpus + 1) + ++gpu->counts[kind];
    pthread_mutex_unlock(&lock);
    return value;
}

EXPORT Result nvmlInit_v2(void) {
    ENTER();
    users++;
    return SUCCESS;
}

EXPORT Result nvmlShutdown(void) {
    ENTER();
    users--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(Result code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == NOT_FOUND ? "Not Found" : "Unknown Error";
}

EXPORT Result nvmlDeviceGetHandleByUUID(const char *uuid, Gpu *gpu) {
    ENTER();
    unsigned number;
    /* See `uuid` in context.c. */
    if (strlen(uuid) != 40 || sscanf(uuid + 38, "%2x", &number) != 1 || number >= MAX_DEVICES) return NOT_FOUND;
    *gpu = &gpus[number];
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetUtilizationRates(Gpu gpu, struct utilisation *rates) {
    ENTER();
    rates->gpu = next(gpu, UTILISATION) % 100;
    rates->memory = 0;
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetMemoryInfo_v2(Gpu gpu, struct memory *memory) {
    ENTER();
    memory->used = next(gpu, MEMORY);
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetPowerUsage(Gpu gpu, unsigned *milliwatts) {
    ENTER();
    *milliwatts = next(gpu, POWER);
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetClockInfo(Gpu gpu, int clock, unsigned *mhz) {
    ENTER();
    if (clock < 0 || clock > 3) return INVALID_ARGUMENT;
    *mhz = next(gpu, CLOCK + clock);
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetTemperatureV(Gpu gpu, struct temperature *sensor) {
    ENTER();
    if (sensor->sensor != 0) return INVALID_ARGUMENT;
    sensor->temperature = (int)next(gpu, TEMPERATURE);
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetCurrentClocksEventReasons(Gpu gpu, unsigned long long *reasons) {
    ENTER();
    *reasons = next(gpu, REASONS);
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetPcieThroughput(Gpu gpu, int counter, unsigned *kb) {
    ENTER();
    if (counter != 0 && counter != 1) return INVALID_ARGUMENT;
    *kb = next(gpu, PCIE + counter);
    return SUCCESS;
}

/* NVLink's data sent and received, ids 138 and 139, summed over all links: an unsigned long long. */
EXPORT Result nvmlDeviceGetFieldValues(Gpu gpu, int count, struct field *fields) {
    ENTER();
    for (struct field *field = fields; field < fields + count; field++) {
        int known = (field->id == 138 || field->id == 139) && field->scope == ~0u;
        field->result = known && !getenv("FAKE_NVML_NO_LINKS") ? SUCCESS : NOT_SUPPORTED;
        if (field->result) continue;
        field->type = 3;
        field->value = next(gpu, NVLINK + (int)field->id - 138);
    }
    return SUCCESS;
}
