/* Graphs: a list of captured work. A launch takes as long as all of it, one after another. */
#include "fake.h"
#include "fake_objects.h"

#include <stdlib.h>

static CUresult instantiate(Handle *handle, Handle graph_handle) {
    LOCKED;
    Graph *graph = object_find(GRAPH, graph_handle);
    if (!graph) return INVALID_VALUE;
    Graph *exec = object_new(EXEC);
    if (!exec || !nodes_copy(&exec->nodes, &graph->nodes)) return OUT_OF_MEMORY;
    *handle = exec->header.handle;
    return SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(Handle *exec, Handle graph, uint64_t flags) {
    ENTER(cuGraphInstantiateWithFlags);
    (void)flags;
    return instantiate(exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams(Handle *exec, Handle graph, void *params) {
    ENTER(cuGraphInstantiateWithParams);
    (void)params;
    return instantiate(exec, graph);
}

static CUresult destroy(Kind kind, Handle handle) {
    LOCKED;
    Graph *graph = object_find(kind, handle);
    if (!graph) return INVALID_VALUE;
    free(graph->nodes.items);
    object_free(kind, graph);
    return SUCCESS;
}

EXPORT CUresult cuGraphDestroy(Handle graph) {
    ENTER(cuGraphDestroy);
    return destroy(GRAPH, graph);
}

EXPORT CUresult cuGraphExecDestroy(Handle exec) {
    ENTER(cuGraphExecDestroy);
    return destroy(EXEC, exec);
}

/* How many there are, and no more: a test asks whether tracing changed a capture. */
EXPORT CUresult cuGraphGetNodes(Handle handle, Handle *nodes, size_t *count) {
    ENTER(cuGraphGetNodes);
    LOCKED;
    Graph *graph = object_find(GRAPH, handle);
    if (!graph) return INVALID_VALUE;
    for (size_t i = 0; nodes && i < *count && i < graph->nodes.count; i++) nodes[i] = i + 1;
    *count = graph->nodes.count;
    return SUCCESS;
}

EXPORT CUresult cuGraphUpload(Handle exec, Handle stream) {
    ENTER(cuGraphUpload);
    (void)stream;
    return object_find(EXEC, exec) ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuGraphLaunch(Handle exec_handle, Handle stream_handle) {
    ENTER(cuGraphLaunch);
    LOCKED;
    Stream *stream;
    Capture *capture;
    Graph *exec = object_find(EXEC, exec_handle);
    if (!exec) return INVALID_VALUE;
    CUresult code = stream_find(stream_handle, &stream);
    if (!code) code = capture_of(stream, &capture);
    if (code) return code;
    int64_t called = host_now(), time = capture ? 0 : stream_start(stream);
    for (size_t i = 0; i < exec->nodes.count && !code; i++) {
        Node node = exec->nodes.items[i];
        if (capture) {
            stream->capture_step++;
            code = nodes_add(&capture->nodes, node);
            continue;
        }
        time += node.duration_ns;
        Event *event = node.kind == RECORD ? object_find(EVENT, node.event) : NULL;
        if (event) event_stamped(event, stream, time, called);
    }
    if (!capture) stream_advance(stream, time);
    return code;
}
