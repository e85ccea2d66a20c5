/* Host time, and the device clocks: smooth functions of host time that never step when a setting changes.
 *
 * A clock is a list of pieces. Within one, device = device0 + dt * (1 + skew) + the exact integral of the wander,
 * whose rate is A * cos(2 pi (t - epoch) / P), so that asking twice about one moment gives one answer.
 */
#include "fake.h"

#include <errno.h>
#include <math.h>
#include <time.h>

enum { MAX_PIECES = 256 };

typedef struct {
    int64_t host0, device0;
    long double skew, wander, period_ns;
} Piece;

static struct {
    Piece pieces[MAX_PIECES];
    _Atomic int count;
} clocks[MAX_DEVICES];
static int64_t epoch;

int64_t host_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static long double wander_integral(const Piece *piece, int64_t host_ns) {
    if (piece->wander == 0 || piece->period_ns <= 0) return 0;
    const long double turn = 2 * 3.14159265358979323846264338327950288L / piece->period_ns;
    return piece->wander / turn * sinl(turn * (long double)(host_ns - epoch));
}

/* As floorl(), which is a call that takes longer than all the rest of reading an event. */
static int64_t floor_ns(long double ns) {
    int64_t whole = (int64_t)ns;
    return whole - ((long double)whole > ns);
}

int64_t device_time(CUdevice device, int64_t host_ns) {
    int last = clocks[device].count - 1;
    const Piece *piece = &clocks[device].pieces[last];
    while (last > 0 && piece->host0 > host_ns) piece = &clocks[device].pieces[--last];
    int64_t passed = host_ns - piece->host0;
    long double extra = piece->skew * (long double)passed;
    extra += wander_integral(piece, host_ns) - wander_integral(piece, piece->host0);
    return piece->device0 + passed + floor_ns(extra);
}

int64_t device_stamp(CUdevice device, int64_t host_ns) {
    int64_t time = device_time(device, host_ns), tick = (int64_t)settings.tick_ns;
    return tick > 1 ? time - ((time % tick) + tick) % tick : time;
}

void clock_changed(CUdevice device, double skew_ppm, double wander_ppm, double period_s) {
    int count = clocks[device].count;
    if (count == MAX_PIECES) return;
    Piece *piece = &clocks[device].pieces[count];
    piece->host0 = host_now();
    piece->device0 = count ? device_time(device, piece->host0) : (int64_t)(settings.offset_ns + 1e11 * device);
    piece->skew = skew_ppm * 1e-6L;
    piece->wander = wander_ppm * 1e-6L;
    piece->period_ns = period_s * 1e9L;
    clocks[device].count = count + 1;
}

void clock_start(void) {
    epoch = host_now();
    for (int device = 0; device < MAX_DEVICES; device++) {
        clocks[device].count = 0;
        clock_changed(device, settings.skew_ppm, settings.wander_ppm, settings.wander_period_s);
    }
}

/* Sleeps through most of a long wait, then spins, as the driver does by default: a sleep alone wakes 50 us late. */
void wait_until(int64_t host_ns) {
    enum { SPIN_NS = 200000 };
    int64_t wake = host_ns - SPIN_NS;
    if (host_now() < wake) {
        struct timespec at = {.tv_sec = wake / 1000000000, .tv_nsec = wake % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
    }
    while (host_now() < host_ns) {}
}
