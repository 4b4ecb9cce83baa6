// SPDX-License-Identifier: Apache-2.0
// Access to the slots of message objects by their offsets, without Python's attribute lookup. The instances of a
// message class have only `__slots__`, so a field is a pointer at a fixed offset in every instance.
#ifndef KCODEC_MESSAGE_OBJECT_H
#define KCODEC_MESSAGE_OBJECT_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#ifndef Py_T_OBJECT_EX
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

// Returns the offset of a slot from its member descriptor, or -1 if the object is not the descriptor of a slot.
static inline Py_ssize_t message_slot_offset(PyObject *descriptor) {
    if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    return member->type == Py_T_OBJECT_EX ? member->offset : -1;
}

static inline PyObject **message_slot(PyObject *message, Py_ssize_t offset) {
    return (PyObject **)((char *)message + offset);
}

// Returns a new instance with empty slots, without calling its __init__.
static inline PyObject *message_allocate(PyObject *type) {
    return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
}

// Sets a slot and steals the reference to `value`.
static inline void message_fill(PyObject *message, Py_ssize_t offset, PyObject *value) {
    PyObject **slot = message_slot(message, offset);
    PyObject *before = *slot;
    *slot = value;
    Py_XDECREF(before);
}

// Returns a new reference to the value of a slot, or NULL without an exception if the slot is empty. In a free-threaded
// build another thread may replace the value at the same time, so the interpreter's attribute access is used there.
static inline PyObject *message_value(PyObject *message, Py_ssize_t offset, PyObject *name) {
#ifdef Py_GIL_DISABLED
    (void)offset;
    PyObject *value = PyObject_GetAttr(message, name);
    if (!value) PyErr_Clear();
    return value;
#else
    (void)name;
    PyObject *value = *message_slot(message, offset);
    Py_XINCREF(value);
    return value;
#endif
}

static inline PyObject *message_long(long long value) { return PyLong_FromLongLong(value); }
static inline PyObject *message_bool(int value) { return PyBool_FromLong(value); }
static inline PyObject *message_float(double value) { return PyFloat_FromDouble(value); }
static inline PyObject *message_list(Py_ssize_t size) { return PyList_New(size); }
// Sets an item of a new list and steals the reference.
static inline void message_list_set(PyObject *list, Py_ssize_t index, PyObject *value) {
    PyList_SET_ITEM(list, index, value);
}

// Returns NULL without an exception if the bytes are not valid UTF-8.
static inline PyObject *message_text(const char *data, Py_ssize_t size) {
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    return text;
}

// Disables the garbage collector and returns whether it was enabled. Up to Python 3.11 every allocation may start it,
// and it would traverse the objects of a large message again and again (half the time for 7,000 partitions), although
// none of them can be garbage yet. Later versions of Python run it only between bytecode instructions, so never in
// here. The caller must hold the GIL until message_collector_on.
static inline int message_collector_off(void) {
#if PY_VERSION_HEX < 0x030C0000
    return PyGC_Disable();
#else
    return 0;
#endif
}

static inline void message_collector_on(int was_on) {
#if PY_VERSION_HEX < 0x030C0000
    if (was_on) PyGC_Enable();
#else
    (void)was_on;
#endif
}

static inline double message_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t message_double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif
