#ifndef UTRACEFS_CONNECTING_H
#define UTRACEFS_CONNECTING_H

/* A path that fits a socket's address. */
#define UT_DIRECTORY 108

/* The directories of the sockets, best first; "" for none. directory: in place of the environment's;
 * or NULL. */
void ut_choose_directories(char directories[2][UT_DIRECTORY], const char *directory);
/* A connected socket, or -errno: of several errors the first other than "there is nothing". name: of
 * the socket. */
int ut_connect(const char directories[2][UT_DIRECTORY], const char *name);

#endif
