/*
 * The states of a session and its connection. A test draws this from the table in states.c:
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
 * From each of these FORK leads to FORKED, and CLOSE to CLOSED, the final state.
 */
#ifndef UTRACEFS_STATES_H
#define UTRACEFS_STATES_H

enum ut_state {
	UT_NEW,		     /* connects with the next step */
	UT_WAITING,	     /* until `due`: there was no daemon, or the connection was lost */
	UT_FORKED,	     /* a child's copy: like NEW, as soon as there is a record or a registration */
	UT_ANSWERS,	     /* waits for the status file and the events of the previous connection */
	UT_ANSWERS_AND_RING, /* the same, and for a requested ring */
	UT_ANSWERS_TO_OFFER, /* as ANSWERS; then the ring of the previous connection is offered */
	UT_OFFERED,	     /* waits for the daemon's decision to adopt it */
	UT_UP,		     /* each event follows its answer */
	UT_CLOSED
};

enum ut_input {
	UT_NO_RING,	  /* connected, or the ring is given up: records go over the socket */
	UT_NEW_RING,	  /* the same, and a ring was requested */
	UT_OLD_RING,	  /* connected, and there is a ring of the previous connection */
	UT_READY,	  /* all answers have come */
	UT_RING_ANSWERED, /* given or refused; if refused, the socket serves */
	UT_SAME_INDEXES,  /* all answers have come, and the ring's events have their former write_index */
	UT_ADOPTED,
	UT_WANTED,	/* a caller needs the connection, or `due` has come */
	UT_TAKEN_AWAY,	/* the program has closed a descriptor of the connection */
	UT_LOST,	/* the connection ended, or connecting failed */
	UT_FORK,
	UT_CLOSE
};

/* The next state; the same state if the table has no such transition. */
enum ut_state ut_next_state(enum ut_state state, enum ut_input input);

/* Whether there is a connection. */
static inline int ut_is_connected(enum ut_state state)
{
	return state >= UT_ANSWERS && state <= UT_UP;
}

#endif
