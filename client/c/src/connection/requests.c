/* Requests of a connection, and sending their bytes. */
#include "connection.h"

static void put_request(struct ut_session *s, struct ut_asked *asked)
{
	struct ut_reg *reg = asked->what;
	struct ut_enabler *enabler = asked->what;

	switch (asked->about) {
	case UT_ABOUT_STATUS:
		ut_put_plain(&s->out, asked->msgid, "mmap_status");
		break;
	case UT_ABOUT_RING:
		ut_put_mmap_ring(&s->out, asked->msgid, s->settings.ring_bytes);
		break;
	case UT_ABOUT_ADOPT:
		ut_put_empty_map(&s->out, asked->msgid, "adopt_ring");
		ut_go(s, UT_SAME_INDEXES);
		break;
	case UT_ABOUT_NOTIFY:
		ut_put_empty_map(&s->out, asked->msgid, "notify_enablers");
		break;
	case UT_ABOUT_REG:
		ut_put_register(&s->out, asked->msgid, reg->command, reg->flags, reg->event_id, UT_NO_TOKEN);
		reg->state = UT_ASKED_FOR;
		break;
	case UT_ABOUT_ENABLER:
		ut_put_register(&s->out, asked->msgid, enabler->command, enabler->flags, enabler->event_id,
				enabler->token);
		enabler->state = UT_ASKED_FOR;
		break;
	case UT_ABOUT_CALL:
		break; /* the caller writes it */
	}
}

/* Adds an entry with the next msgid: 0, or -EAGAIN if there is no space now. */
int ut_ask(struct ut_session *s, enum ut_about about, void *what)
{
	struct ut_asked *asked = &s->asked[s->nr_asked];

	if (!ut_is_connected(s->state))
		return -ENOTCONN;
	if (s->nr_asked == UT_ASKED || UT_OUT_BYTES - s->out.size < DR_MAX_PAYLOAD + 1024)
		return -EAGAIN;
	*asked = (struct ut_asked){s->next_msgid++, about, what};
	s->nr_asked++;
	put_request(s, asked);
	return 0;
}

void ut_forget_asked(struct ut_session *s, const void *what)
{
	for (unsigned i = 0; i < s->nr_asked; i++)
		if (s->asked[i].what == what)
			s->asked[i].what = NULL;
}

void ut_ask_registrations(struct ut_session *s)
{
	if (s->flags & UT_TOKENS) {
		if (!s->is_notified)
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

/* 0; -EAGAIN: the socket is full; or -errno. */
int ut_send_out(struct ut_session *s)
{
	while (s->out_sent < s->out.size) {
		ssize_t sent = send(s->socket.fd, s->out.data + s->out_sent, s->out.size - s->out_sent,
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return -errno;
		s->out_sent += (size_t)sent;
	}
	s->out.size = s->out_sent = 0;
	return 0;
}

/* The request of `adopt_ring`, with both descriptors beside its first byte: nothing else is being sent. */
int ut_send_offer(struct ut_session *s)
{
	const struct ut_outlet *outlet = &ut_outlets[s->ring];
	int fds[2] = {outlet->memory.fd, outlet->doorbell.fd};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(fds))];
	} control;
	struct iovec iov;
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *header = &control.align;
	ssize_t sent;

	if (s->out.size || ut_ask(s, UT_ABOUT_ADOPT, NULL))
		return -EAGAIN;
	iov = (struct iovec){s->out.data, s->out.size};
	memset(&control, 0, sizeof(control));
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(header), fds, sizeof(fds));
	sent = sendmsg(s->socket.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (sent != (ssize_t)s->out.size)
		return -EPROTO; /* an empty socket that does not take a request */
	s->out.size = s->out_sent = 0;
	return 0;
}
