/* What really happened: every event stamp with its true host time, kept when asked for, up to a limit. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Stamp *stamps;
static size_t kept, room;
static uint64_t dropped;

Stamp event_stamp(const Event *event, CUdevice device, int64_t call_ns) {
    return (Stamp){
        .event = event->header.handle,
        .event_record = event->records,
        .stream = event->stream,
        .context = event->context,
        .device = (uint64_t)device,
        .call_ns = call_ns,
        .host_ns = event->stamp_ns,
        .device_ns = device_stamp(device, event->stamp_ns),
    };
}

void truth_add(const Event *event, CUdevice device, int64_t call_ns) {
    if (!stamps) {
        room = (size_t)settings.truth;
        stamps = calloc(room, sizeof *stamps);
    }
    if (!stamps || kept == room) {
        dropped++;
        return;
    }
    stamps[kept] = event_stamp(event, device, call_ns);
    stamps[kept].number = kept;
    kept++;
}

EXPORT uint64_t fake_truth_count(void) { return kept; }
EXPORT uint64_t fake_truth_dropped(void) { return dropped; }

EXPORT uint64_t fake_truth_read(Stamp *into, uint64_t first, uint64_t count) {
    LOCKED;
    if (first >= kept) return 0;
    if (count > kept - first) count = kept - first;
    memcpy(into, stamps + first, count * sizeof *into);
    return count;
}

EXPORT void fake_truth_reset(void) {
    LOCKED;
    free(stamps);
    stamps = NULL;
    kept = dropped = 0;
}

/* "%p" in a name stands for the process id, so that a program and its children need not share a file. */
static FILE *open_named(const char *name) {
    char path[4096];
    const char *mark = strstr(name, "%p");
    if (mark) snprintf(path, sizeof path, "%.*s%ld%s", (int)(mark - name), name, (long)getpid(), mark + 2);
    else snprintf(path, sizeof path, "%s", name);
    return fopen(path, "w");
}

EXPORT int fake_truth_write(const char *name) {
    LOCKED;
    FILE *file = open_named(name);
    if (!file) return 1;
    fprintf(file, "number,event,event_record,stream,context,device,call_ns,host_ns,device_ns\n");
    for (size_t i = 0; i < kept; i++) {
        Stamp *s = &stamps[i];
        fprintf(file, "%lu,%lu,%lu,%lu,%lu,%lu,%ld,%ld,%ld\n", (unsigned long)s->number, (unsigned long)s->event,
            (unsigned long)s->event_record, (unsigned long)s->stream, (unsigned long)s->context,
            (unsigned long)s->device, (long)s->call_ns, (long)s->host_ns, (long)s->device_ns);
    }
    return fclose(file) ? 1 : 0;
}

static void write_stream_syncs(void *object, void *argument) {
    Stream *stream = object;
    if (!stream->syncs) return;
    fprintf(argument, "sync,%lu,%lu\n", (unsigned long)stream_public_handle(stream), (unsigned long)stream->syncs);
}

/* Lines "call,NAME,TIMES", "live,KIND,COUNT", "made,KIND,COUNT", "sync,STREAM,TIMES" (streams still alive). */
EXPORT int fake_counts_write(const char *name) {
    static const char *const kinds[KINDS] = {[CONTEXT] = "context", [STREAM] = "stream", [EVENT] = "event",
        [MODULE] = "module", [FUNCTION] = "function", [GRAPH] = "graph", [EXEC] = "exec"};
    LOCKED;
    FILE *file = open_named(name);
    if (!file) return 1;
    for (int function = 0; function < FUNCTIONS; function++)
        if (call_count[function])
            fprintf(file, "call,%s,%lu\n", functions[function].symbol, (unsigned long)call_count[function]);
    for (int kind = CONTEXT; kind < KINDS; kind++) {
        fprintf(file, "live,%s,%ld\n", kinds[kind], (long)live_count[kind]);
        fprintf(file, "made,%s,%ld\n", kinds[kind], (long)made_count[kind]);
    }
    object_each(STREAM, write_stream_syncs, file);
    return fclose(file) ? 1 : 0;
}

static void forget_in_child(void) { kept = dropped = 0; }

/* A launcher that only looks for a driver loads the library too: it has made no context, and must overwrite nothing. */
static void at_exit(void) {
    const char *truth = getenv("FAKE_CUDA_TRUTH_FILE"), *counts = getenv("FAKE_CUDA_COUNTS_FILE");
    if (truth && kept) fake_truth_write(truth);
    if (counts && made_count[CONTEXT]) fake_counts_write(counts);
}

void truth_start(void) {
    if (getenv("FAKE_CUDA_TRUTH_FILE") && settings.truth <= 0) settings.truth = 1 << 20;
    pthread_atfork(NULL, NULL, forget_in_child);
    atexit(at_exit);
}
