/* A growing array, and pseudorandom numbers: the driver links no C++ library. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

template <class T> struct Vector { /* of values that may be moved as bytes; never freed as a whole but by clear */
    T *data = nullptr;
    size_t size = 0, room = 0;
    T &operator[](size_t index) { return data[index]; }
    const T &operator[](size_t index) const { return data[index]; }
    T *begin() { return data; }
    T *end() { return data + size; }
    void push(const T &value) {
        const T copy = value;
        if (size == room) data = (T *)realloc((void *)data, (room = room ? 2 * room : 16) * sizeof(T));
        memcpy((void *)(data + size++), (const void *)&copy, sizeof copy);
    }
    void resize(size_t count) { /* new ones are zeros */
        if (count > room) data = (T *)realloc((void *)data, (room = count) * sizeof(T));
        if (count > size) memset((void *)(data + size), 0, (count - size) * sizeof(T));
        size = count;
    }
    void swap_out(size_t index) { data[index] = data[--size]; }
    void release() {
        free((void *)data);
        data = nullptr;
        size = room = 0;
    }
};

struct Random { /* splitmix64 */
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    uint32_t below(uint32_t bound) { return (uint32_t)((next() >> 32) * bound >> 32); }
};
