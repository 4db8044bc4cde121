/* Counts the bytes that processes copy: loaded before libc (LD_PRELOAD) by `tests.benchmarks.copies`.
 *
 * A copy is a call of memcpy and its like, or what a call of the kernel takes from a buffer or puts into one, if it is of
 * COUNTED bytes at least: a payload goes in such parts, and nothing else does. The sums are in the file SUMS, which
 * all map.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define COUNTED 4096
enum { IN_MEMORY, BY_KERNEL };

static uint64_t *sums;

__attribute__((constructor)) static void start(void) {
    int file = open(SUMS, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, 2 * sizeof *sums, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) sums = mapped;
}

static void count(int kind, ssize_t size) {
    if (size >= COUNTED && sums != NULL) __atomic_fetch_add(&sums[kind], (uint64_t)size, __ATOMIC_RELAXED);
}

/* Not by loops in C, which a compiler would make calls of these functions again. */
static void forwards(void *to, const void *from, size_t size) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

static void backwards(void *to, const void *from, size_t size) {
    char *last_to = (char *)to + size - 1;
    const char *last_from = (const char *)from + size - 1;
    __asm__ volatile("std\n\trep movsb\n\tcld" : "+D"(last_to), "+S"(last_from), "+c"(size) : : "memory");
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    count(IN_MEMORY, (ssize_t)size);
    forwards(to, from, size);
    return to;
}

void *memmove(void *to, const void *from, size_t size) {
    count(IN_MEMORY, (ssize_t)size);
    if ((uintptr_t)to - (uintptr_t)from < size && size) backwards(to, from, size);
    else forwards(to, from, size);
    return to;
}

void *mempcpy(void *restrict to, const void *restrict from, size_t size) { return (char *)memcpy(to, from, size) + size; }
void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) {
    if (size > room) abort();
    return memcpy(to, from, size);
}
void *__memmove_chk(void *to, const void *from, size_t size, size_t room) {
    if (size > room) abort();
    return memmove(to, from, size);
}

#define BY_KERNEL_TOO(name, parameters, arguments)                                                                     \
    ssize_t name parameters {                                                                                          \
        static ssize_t(*real) parameters;                                                                              \
        if (real == NULL) real = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);                                       \
        ssize_t done = real arguments;                                                                                 \
        count(BY_KERNEL, done);                                                                                        \
        return done;                                                                                                   \
    }

BY_KERNEL_TOO(read, (int fd, void *to, size_t size), (fd, to, size))
BY_KERNEL_TOO(write, (int fd, const void *from, size_t size), (fd, from, size))
BY_KERNEL_TOO(pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
BY_KERNEL_TOO(pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
BY_KERNEL_TOO(pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
BY_KERNEL_TOO(pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
BY_KERNEL_TOO(readv, (int fd, const struct iovec *parts, int number), (fd, parts, number))
BY_KERNEL_TOO(writev, (int fd, const struct iovec *parts, int number), (fd, parts, number))
BY_KERNEL_TOO(pwritev, (int fd, const struct iovec *parts, int number, off_t at), (fd, parts, number, at))
BY_KERNEL_TOO(pwritev64, (int fd, const struct iovec *parts, int number, off64_t at), (fd, parts, number, at))
BY_KERNEL_TOO(pwritev2, (int fd, const struct iovec *parts, int number, off_t at, int flags), (fd, parts, number, at, flags))
BY_KERNEL_TOO(recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags))
BY_KERNEL_TOO(send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags))
BY_KERNEL_TOO(recvfrom, (int fd, void *restrict to, size_t size, int flags, struct sockaddr *restrict a, socklen_t *restrict l),
              (fd, to, size, flags, a, l))
BY_KERNEL_TOO(sendto, (int fd, const void *from, size_t size, int flags, const struct sockaddr *a, socklen_t l),
              (fd, from, size, flags, a, l))
BY_KERNEL_TOO(recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
BY_KERNEL_TOO(sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
