/*
 * Requests of a connection, and sending their bytes.
 *
 * A request gets a msgid and an entry of `asked`, in the order of sending; its bytes go to `out`, which the
 * socket takes without waiting, as far as it has room. The daemon answers in any order, by msgid. An entry
 * whose requester is gone stays until its answer, with `what` NULL. Both are bounded, so a program with more
 * events than that asks for the next ones as answers come (ut_ask_registrations with each step).
 *
 * The first bytes of a connection are special: the ring's descriptors go beside them, in one call
 * (ut_send_first).
 */
#include "connection.h"

static void put_request(struct ut_session *s, struct ut_asked *asked)
{
	struct ut_reg *reg = asked->what;
	struct ut_enabler *enabler = asked->what;
	struct ut_call *call = asked->what;

	switch (asked->about) {
	case UT_ABOUT_STATUS:
		ut_put_plain(&s->out, asked->msgid, "mmap_status");
		break;
	case UT_ABOUT_RING:
		ut_put_adopt_ring(&s->out, asked->msgid);
		break;
	case UT_ABOUT_NOTIFY:
		ut_put_notify(&s->out, asked->msgid);
		break;
	case UT_ABOUT_REG:
		ut_put_register(&s->out, asked->msgid, reg->command, reg->flags, reg->event_id, UT_NO_TOKEN,
				ut_has_numbers(s) ? reg->number : UT_NO_NUMBER);
		reg->state = UT_ASKED_FOR;
		/* The daemon gets its records from here on, even if this process ends before anything is answered. */
		if (ut_has_numbers(s))
			reg->write_index = reg->number;
		break;
	case UT_ABOUT_ENABLER:
		ut_put_register(&s->out, asked->msgid, enabler->command, enabler->flags, enabler->event_id,
				enabler->token, UT_NO_NUMBER);
		enabler->state = UT_ASKED_FOR;
		break;
	case UT_ABOUT_CALL:
		call->put(&s->out, asked->msgid, call->arg);
		break;
	}
}

int ut_has_room(const struct ut_session *s, size_t more)
{
	return !ut_is_connected(s->state) || (s->nr_asked < UT_ASKED && UT_OUT_BYTES - s->out.size >= 1024 + more);
}

int ut_ask(struct ut_session *s, enum ut_about about, void *what)
{
	struct ut_asked *asked = &s->pages->asked[s->nr_asked];

	if (!ut_is_connected(s->state))
		return -ENOTCONN;
	if (!ut_has_room(s, about == UT_ABOUT_CALL ? DR_MAX_PAYLOAD : 0))
		return -EAGAIN;
	*asked = (struct ut_asked){s->next_msgid++, about, what};
	s->nr_asked++;
	put_request(s, asked);
	return 0;
}

void ut_forget_asked(struct ut_session *s, const void *what)
{
	for (unsigned i = 0; i < s->nr_asked; i++)
		if (s->pages->asked[i].what == what)
			s->pages->asked[i].what = NULL;
}

void ut_ask_registrations(struct ut_session *s)
{
	if (s->flags & UT_TOKENS) {
		if (!ut_is_up(s->state))
			return;
		for (struct ut_enabler *enabler = s->enablers; enabler; enabler = enabler->next)
			if (enabler->state == UT_TO_ASK && ut_ask(s, UT_ABOUT_ENABLER, enabler))
				return;
		return;
	}
	for (; s->to_ask; s->to_ask = s->to_ask->next)
		if (s->to_ask->state == UT_TO_ASK && ut_ask(s, UT_ABOUT_REG, s->to_ask))
			return;
}

/* One call for all, so that a sandbox that refuses it refuses a ring, too, instead of what follows it. */
static ssize_t send_now(struct ut_session *s, const uint8_t *data, size_t size, void *control, size_t bytes)
{
	struct iovec iov = {(void *)data, size};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = bytes};

	return sendmsg(s->socket.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int ut_send_bytes(struct ut_session *s, const uint8_t *data, size_t size, size_t *sent)
{
	while (*sent < size) {
		ssize_t now = send_now(s, data + *sent, size - *sent, NULL, 0);

		if (now < 0 && errno == EINTR)
			continue;
		if (now < 0)
			return -errno;
		*sent += (size_t)now;
	}
	return 0;
}

int ut_send_out(struct ut_session *s)
{
	int error = ut_send_bytes(s, s->out.data, s->out.size, &s->out_sent);

	if (!error)
		s->out.size = s->out_sent = 0;
	return error;
}

int ut_send_first(struct ut_session *s)
{
	const struct ut_outlet *outlet = &ut_outlets[s->ring];
	int fds[2] = {outlet->memory.fd, outlet->doorbell.fd};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(fds))];
	} control = {.bytes = {0}};
	struct cmsghdr *header = &control.align;
	ssize_t sent;

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(header), fds, sizeof(fds));
	sent = send_now(s, s->out.data, s->out.size, s->state == UT_OFFERED ? &control : NULL,
			s->state == UT_OFFERED ? sizeof(control) : 0);
	if (sent < 0)
		return -errno;
	s->out_sent = (size_t)sent;
	ut_send_out(s); /* (an error comes again with the next step) */
	return 0;
}
