# SPDX-License-Identifier: Apache-2.0
# Deserialization of keys and values in place, for records that no other code has a reference to yet.

def deserialize_records(list records not None, key_deserializer, value_deserializer, Py_ssize_t start=0,
                        bint takes_none=False):
    """Convert the keys and values of these records in place, those that are not None. Internal.

    takes_none: also call the deserializers for None.

    Return None, or the index of the first record that failed, the name of the field and the exception. That record
    stays as it was.
    """
    cdef Py_ssize_t index
    cdef Record record
    cdef str field
    for index in range(start, len(records)):
        record = <Record?>records[index]
        key, value = record._key, record._value
        field = "key"
        try:
            if key_deserializer is not None and (takes_none or key is not None) and not _is_absent(key):
                key = key_deserializer(key)
            field = "value"
            if value_deserializer is not None and (takes_none or value is not None) and not _is_absent(value):
                value = value_deserializer(value)
        except Exception as error:
            return index, field, error
        record._key = key
        record._value = value
    return None
