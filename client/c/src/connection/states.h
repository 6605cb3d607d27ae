/*
 * The states of a session and its connection. A test draws this from the table in states.c:
 *
 *     NEW                 OFFER            -> OFFERED
 *                         PLAIN            -> SOCKET
 *     WAITING             WANTED           -> NEW
 *     FORKED              WANTED           -> NEW
 *     OFFERED             READY            -> UP
 *                         PLAIN            -> SOCKET
 *     SOCKET              READY            -> SENDS
 *
 * From those with a connection (OFFERED, SOCKET, UP, SENDS) AGAIN leads to NEW. From each state LOST
 * leads to WAITING, FORK to FORKED, and CLOSE to CLOSED, the final one.
 */
#ifndef UTRACEFS_STATES_H
#define UTRACEFS_STATES_H

enum ut_state {
	UT_NEW,	    /* connects with the next step */
	UT_WAITING, /* until `due`: there was no daemon, or the connection was lost */
	UT_FORKED,  /* a child's copy: like NEW, as soon as there is a record or a registration */
	UT_OFFERED, /* the daemon has the ring; waits for its answers */
	UT_SOCKET,  /* waits for answers; the daemon does not read the ring */
	UT_UP,	    /* each event follows its answer, and the daemon reads the ring */
	UT_SENDS,   /* each event follows its answer, and the ring's records are sent over the socket */
	UT_CLOSED
};

enum ut_input {
	UT_OFFER, /* connected, and the ring is handed over */
	UT_PLAIN, /* connected without a ring for the daemon, or it does not take it */
	UT_READY, /* all answers have come */
	UT_WANTED,	/* a caller needs the connection, or `due` has come */
	UT_AGAIN,	/* the program has closed a descriptor, or the daemon is of another version */
	UT_LOST,	/* the connection ended, or connecting failed */
	UT_FORK,
	UT_CLOSE
};

/* The next state; the same state if the table has no such transition. */
enum ut_state ut_next_state(enum ut_state state, enum ut_input input);

/* Whether there is a connection. */
static inline int ut_is_connected(enum ut_state state)
{
	return state >= UT_OFFERED && state <= UT_SENDS;
}

static inline int ut_is_up(enum ut_state state)
{
	return state == UT_UP || state == UT_SENDS;
}

#endif
