"""Inside the guest: carries connections between a serial port (standard input) and vsock ports of this very machine.

Frames: a letter, a connection, a length, bytes. To the guest: C connect to a port, D data, X close, R close all.
From it: O opened, D data, X closed. Runs in the guest's own Python, so it imports nothing of ours.
"""

import os
import selectors
import socket
import struct

HEAD = struct.Struct(">cIH")
LOCAL = 1
CHUNK = 1 << 14

port = 0
selector = selectors.DefaultSelector()
connections = {}


def send(kind, number, data=b""):
    data = HEAD.pack(kind, number, len(data)) + data
    while data:
        data = data[os.write(port, data) :]


def take(count):
    data = b""
    while len(data) < count:
        data += os.read(port, count - len(data))
    return data


def close(number):
    connection = connections.pop(number, None)
    if connection:
        selector.unregister(connection)
        connection.close()


def hear():
    kind, number, length = HEAD.unpack(take(HEAD.size))
    data = take(length)
    if kind == b"C":
        connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        try:
            connection.connect((LOCAL, int(data)))
        except OSError:
            connection.close()
            send(b"X", number)
            return
        connections[number] = connection
        selector.register(connection, selectors.EVENT_READ, lambda: tell(number))
        send(b"O", number)
    elif kind == b"D" and number in connections:
        try:
            connections[number].sendall(data)
        except OSError:
            close(number)
            send(b"X", number)
    elif kind == b"X":
        close(number)
    elif kind == b"R":
        for each in list(connections):
            close(each)


def tell(number):
    try:
        data = connections[number].recv(CHUNK)
    except OSError:
        data = b""
    if data:
        send(b"D", number, data)
    else:
        close(number)
        send(b"X", number)


os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
selector.register(port, selectors.EVENT_READ, hear)
while True:
    for key, _ in selector.select():
        if key.fd in selector.get_map():
            key.data()
