/* Objects that only one file works with, but whose size the tables must know. */
#ifndef FAKE_OBJECTS_H
#define FAKE_OBJECTS_H

#include "fake.h"

typedef struct {
    Header header;
    char *ptx; /* NULL for an image that is not text: any kernel name is then found in it */
} Module;

typedef struct {
    Header header;
    Handle module;
    char name[64];
} Kernel;

typedef struct {
    Header header;
    Nodes nodes;
} Graph; /* an instantiated one (EXEC) too */

#endif
