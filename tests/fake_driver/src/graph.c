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

typedef struct { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
    uint64_t flags;
    Handle upload_stream, error_node;
    int result;
} InstantiateParams;

EXPORT CUresult cuGraphInstantiateWithParams(Handle *exec, Handle graph, InstantiateParams *params) {
    ENTER(cuGraphInstantiateWithParams);
    params->error_node = 0;
    params->result = 0; /* CUDA_GRAPH_INSTANTIATE_SUCCESS */
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

/* What a graph keeps alive for its kernels is kept for ever here. */
EXPORT CUresult cuUserObjectCreate(Handle *object, void *kept, void (*destroy)(void *), unsigned count, unsigned flags) {
    ENTER(cuUserObjectCreate);
    (void)destroy, (void)count, (void)flags;
    *object = (Handle)kept;
    return SUCCESS;
}

EXPORT CUresult cuUserObjectRelease(Handle object, unsigned count) {
    ENTER(cuUserObjectRelease);
    (void)object, (void)count;
    return SUCCESS;
}

EXPORT CUresult cuGraphRetainUserObject(Handle graph, Handle object, unsigned count, unsigned flags) {
    ENTER(cuGraphRetainUserObject);
    (void)object, (void)count, (void)flags;
    return object_find(GRAPH, graph) ? SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuGraphReleaseUserObject(Handle graph, Handle object, unsigned count) {
    ENTER(cuGraphReleaseUserObject);
    (void)object, (void)count;
    return object_find(GRAPH, graph) ? SUCCESS : INVALID_VALUE;
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
