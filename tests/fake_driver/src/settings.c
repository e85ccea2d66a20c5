/* Settings by name, from the environment when the library is loaded and from fake_set() later. */
#include "fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Settings settings = {
#define INITIAL(name, initial) .name = initial,
    SETTINGS(INITIAL)
#undef INITIAL
};

static const struct {
    const char *name;
    double *value;
} table[] = {
#define ROW(name, initial) {#name, &settings.name},
    SETTINGS(ROW)
#undef ROW
};

static double *find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name)) return table[i].value;
    return NULL;
}

static bool is_clock(const char *name) { return !strncmp(name, "skew", 4) || !strncmp(name, "wander", 6); }

/* Returns 0, or 1 for a name it does not know. The clocks go on from where they are. */
EXPORT int fake_set(const char *name, double value) {
    LOCKED;
    double *setting = find(name);
    if (!setting) return 1;
    *setting = value;
    for (int device = 0; device < MAX_DEVICES && is_clock(name); device++)
        clock_changed(device, settings.skew_ppm, settings.wander_ppm, settings.wander_period_s);
    return 0;
}

EXPORT double fake_get(const char *name) {
    double *setting = find(name);
    return setting ? *setting : -1;
}

/* One device's clock alone. */
EXPORT void fake_clock(CUdevice device, double skew_ppm, double wander_ppm, double wander_period_s) {
    LOCKED;
    clock_changed(device, skew_ppm, wander_ppm, wander_period_s);
}

EXPORT int64_t fake_device_time(CUdevice device, int64_t host_ns) {
    LOCKED;
    return device_time(device, host_ns);
}

EXPORT int64_t fake_live(int kind) { return kind > 0 && kind < KINDS ? live_count[kind] : -1; }
EXPORT int64_t fake_made(int kind) { return kind > 0 && kind < KINDS ? made_count[kind] : -1; }

static void from_environment(void) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char variable[64] = "FAKE_CUDA_";
        size_t length = strlen(variable);
        for (const char *c = table[i].name; *c; c++) variable[length++] = (char)toupper(*c);
        const char *text = getenv(variable);
        char *end;
        if (!text) continue;
        *table[i].value = strtod(text, &end);
        if (end == text || *end) {
            fprintf(stderr, "fake driver: %s=%s is not a number\n", variable, text);
            _Exit(2);
        }
    }
    if (settings.devices > MAX_DEVICES) settings.devices = MAX_DEVICES;
}

__attribute__((constructor)) static void loaded(void) {
    from_environment();
    clock_start();
    calls_start();
    truth_start();
}
