/*
 * The states of a session and its connection. states.c has the table from which a test draws this:
 *
 *     NEW                 NO_RING          -> ANSWERS
 *                         NEW_RING         -> ANSWERS_AND_RING
 *                         OLD_RING         -> ANSWERS_TO_OFFER
 *                         LOST             -> WAITING
 *     WAITING             WANTED           -> NEW
 *     FORKED              WANTED           -> NEW
 *     ANSWERS             READY            -> UP
 *                         TAKEN_AWAY       -> NEW
 *                         LOST             -> WAITING
 *     ANSWERS_AND_RING    RING_ANSWERED    -> ANSWERS
 *                         TAKEN_AWAY       -> NEW
 *                         LOST             -> WAITING
 *     ANSWERS_TO_OFFER    SAME_INDEXES     -> OFFERED
 *                         NEW_RING         -> ANSWERS_AND_RING
 *                         NO_RING          -> ANSWERS
 *                         TAKEN_AWAY       -> NEW
 *                         LOST             -> WAITING
 *     OFFERED             ADOPTED          -> ANSWERS
 *                         NEW_RING         -> ANSWERS_AND_RING
 *                         NO_RING          -> ANSWERS
 *                         TAKEN_AWAY       -> NEW
 *                         LOST             -> WAITING
 *     UP                  TAKEN_AWAY       -> NEW
 *                         LOST             -> WAITING
 *
 * From each of these FORK leads to FORKED, and CLOSE to CLOSED, where it ends.
 */
#ifndef UTRACEFS_STATES_H
#define UTRACEFS_STATES_H

enum ut_state {
	UT_NEW,		     /* connects with the next step */
	UT_WAITING,	     /* for `due`: nobody was there, or the connection was lost */
	UT_FORKED,	     /* a child's copy: as NEW, when it has something to write or to register */
	UT_ANSWERS,	     /* waits for the status file, and for the events of the connection before */
	UT_ANSWERS_AND_RING, /* the same, and for a ring that was asked for */
	UT_ANSWERS_TO_OFFER, /* the same as ANSWERS; then the ring of the connection before is offered */
	UT_OFFERED,	     /* waits for whether the daemon adopts it */
	UT_UP,		     /* events follow their answers as they come */
	UT_CLOSED
};

enum ut_input {
	UT_NO_RING,	  /* connected, or the ring is given up: records go over the socket */
	UT_NEW_RING,	  /* the same, and a ring is asked for */
	UT_OLD_RING,	  /* connected, and there is a ring of the connection before */
	UT_READY,	  /* the answers are there */
	UT_RING_ANSWERED, /* given or refused: for whatever reason, the socket will do */
	UT_SAME_INDEXES,  /* the answers are there, and the ring's events have the write_index they had */
	UT_ADOPTED,
	UT_WANTED,	/* somebody asks for something, or `due` has come */
	UT_TAKEN_AWAY,	/* the program has closed a descriptor of the connection */
	UT_LOST,	/* the connection, or there was none to be had */
	UT_FORK,
	UT_CLOSE
};

/* The state that this leads to; the same state, where it leads nowhere. */
enum ut_state ut_next_state(enum ut_state state, enum ut_input input);

/* Whether there is a connection. */
static inline int ut_is_connected(enum ut_state state)
{
	return state >= UT_ANSWERS && state <= UT_UP;
}

#endif
